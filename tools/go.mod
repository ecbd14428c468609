module github.com/posthorn/posthorn/tools

go 1.26

require github.com/posthorn/posthorn/openapi v0.0.0

replace github.com/posthorn/posthorn/openapi => ../openapi
