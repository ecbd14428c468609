// Package tools is the root of the Posthorn developer tools.
package tools
