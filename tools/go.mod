module github.com/posthorn/posthorn/tools

go 1.26.0

require github.com/posthorn/posthorn/openapi v0.0.0

require (
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/pgx/v5 v5.12.0 // indirect
	github.com/yuin/goldmark v1.8.7 // indirect
	golang.org/x/text v0.41.0 // indirect
)

replace github.com/posthorn/posthorn/openapi => ../openapi
