module github.com/posthorn/posthorn/openapi

go 1.26

require (
	github.com/getkin/kin-openapi v0.153.0 // indirect
	github.com/go-json-experiment/json v1.27.2 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)
