package api

import (
	"bytes"
	_ "embed"
	"html/template"
	"net/http"
)

//go:embed page.html
var pageSource string

// renderPage makes the page that a browser sees at / and at every other path outside the API.
func renderPage(version string) ([]byte, error) {
	t, err := template.New("page").Parse(pageSource)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, struct{ Version string }{version}); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func (e *edge) index(*call) (answer, error) {
	return answer{
		status:      http.StatusOK,
		contentType: "text/html; charset=utf-8",
		header: map[string]string{
			"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
			"Referrer-Policy":         "no-referrer",
		},
		body: e.page,
	}, nil
}
