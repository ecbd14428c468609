// Package openapi holds the Posthorn API description and checks requests and responses with it.
package openapi
