package reference

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"regexp"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
)

//go:embed page.html
var pageHTML string

var pageTemplate = template.Must(template.New("page").Parse(pageHTML))

var (
	headingID = regexp.MustCompile(`(<h[1-6] id=")`)
	localLink = regexp.MustCompile(`href="#`)
	pageLink  = regexp.MustCompile(`href="([a-z]+)\.md#`)
	wholeLink = regexp.MustCompile(`href="([a-z]+)\.md"`)
	notice    = regexp.MustCompile(`^<!--.*-->\n+`)
)

// HTML renders the pages as one page that needs no other file.
func HTML(pages []Page) ([]byte, error) {
	md := goldmark.New(goldmark.WithExtensions(extension.Table), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	type section struct {
		ID, Title string
		Body      template.HTML
	}
	var sections []section
	for _, p := range pages {
		id := strings.ToLower(strings.TrimSuffix(p.Name, ".md"))
		var b bytes.Buffer
		if err := md.Convert(notice.ReplaceAll(p.Text, nil), &b); err != nil {
			return nil, fmt.Errorf("render %s: %w", p.Name, err)
		}
		// Headings may repeat between pages, so each page's anchors get its name in front.
		body := headingID.ReplaceAllString(b.String(), "${1}"+id+"-")
		body = localLink.ReplaceAllString(body, `href="#`+id+"-")
		body = pageLink.ReplaceAllString(body, `href="#$1-`)
		body = wholeLink.ReplaceAllString(body, `href="#$1"`)
		sections = append(sections, section{
			ID: id, Title: p.Title,
			Body: template.HTML(body), //nolint:gosec // rendered from our own description, without raw HTML
		})
	}
	var out bytes.Buffer
	if err := pageTemplate.Execute(&out, sections); err != nil {
		return nil, fmt.Errorf("render page: %w", err)
	}
	return out.Bytes(), nil
}
