// Package posthorn is the Go client of the Posthorn message broker.
package posthorn
