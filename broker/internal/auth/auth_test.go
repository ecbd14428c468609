package auth

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestLevelsAreSets(t *testing.T) {
	t.Parallel()
	for level, want := range map[string]map[Roles]bool{
		"public":     {0: true, ReadOnly: true, WriteOnly: true, ReadWrite: true, Admin: true},
		"read-only":  {ReadOnly: true, ReadWrite: true, Admin: true},
		"write-only": {WriteOnly: true, ReadWrite: true, Admin: true},
		"read-write": {ReadWrite: true, Admin: true},
		"admin":      {Admin: true},
		"":           {Admin: true},
		"secret":     {Admin: true},
	} {
		for _, role := range []Roles{0, ReadOnly, WriteOnly, ReadWrite, Admin} {
			if got := role.Pass(level); got != want[role] {
				t.Errorf("role %b at level %q: %v", role, level, got)
			}
		}
	}
	both := ReadOnly | WriteOnly
	if !both.Pass("read-only") || !both.Pass("write-only") || both.Pass("read-write") {
		t.Error("a caller with two roles passes what either passes, and no more")
	}
}

func TestToken(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		values []string
		want   string
	}{
		{nil, ""},
		{[]string{""}, ""},
		{[]string{"Bearer abc"}, "abc"},
		{[]string{"bearer abc"}, "abc"},
		{[]string{"BEARER   abc  "}, "abc"},
		{[]string{"  abc "}, "abc"},
		{[]string{"Bearer"}, ""},
		{[]string{"Bearer "}, ""},
		{[]string{"Basic abc"}, ""},
		{[]string{"abc def"}, ""},
		{[]string{"Bearer abc", "Bearer def"}, ""},
	} {
		if got := Token(http.Header{"Authorization": tc.values}); got != tc.want {
			t.Errorf("%q: %q, want %q", tc.values, got, tc.want)
		}
	}
}

const (
	firstToken  = "0123456789abcdef0"
	secondToken = "0123456789abcdef1"
	thirdToken  = "eyJ+/=~0123456789"
)

func TestConfiguredTokens(t *testing.T) {
	t.Parallel()
	a, err := New(Config{Tokens: "# a comment, with:a:colon\n admin:" + firstToken + " , read-only:bob@example.org:" + secondToken + "\r\n\nwrite-only:" + thirdToken})
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]Caller{
		firstToken:  {Name: "token 1", Roles: Admin},
		secondToken: {Name: "bob@example.org", Subject: "bob@example.org", Roles: ReadOnly},
		thirdToken:  {Name: "token 3", Roles: WriteOnly},
	} {
		got, err := a.Authenticate(t.Context(), token)
		if err != nil || *got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	for _, token := range []string{"", " ", firstToken[1:], firstToken + "0", strings.ToUpper(firstToken), "admin:" + firstToken, strings.Repeat("a", 1<<20)} {
		caller, err := a.Authenticate(t.Context(), token)
		if caller != nil || !errors.Is(err, ErrUnauthorized) {
			t.Errorf("%.40q: %v, %v", token, caller, err)
		}
	}
	for i := range a.tokens {
		if text := fmt.Sprintf("%+v", a.tokens[i]); strings.Contains(text, firstToken) || strings.Contains(text, thirdToken) {
			t.Errorf("a token is kept as it is: %s", text)
		}
	}
}

func TestTokensThatAreRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		firstToken:                                         "must be role:token",
		"admin:a:b:" + firstToken:                          "must be role:token",
		firstToken + ":admin":                              "must begin with a role",
		"Admin:" + firstToken:                              "must begin with a role",
		"admin:" + firstToken[:15]:                         "not 16 to",
		"admin:" + strings.Repeat("a", 16<<10+1):           "not 16 to",
		"admin:" + firstToken + " x":                       "visible ASCII",
		"admin:" + firstToken + "é":                        "visible ASCII",
		"admin:a b:" + firstToken:                          "has a name",
		"admin::" + firstToken:                             "has a name",
		"admin:" + firstToken + ",read-only:" + firstToken: "entry 2 has the token of an earlier one",
		" ,\n#admin:" + firstToken:                         "no token in it",
	} {
		a, err := New(Config{Tokens: text})
		if a != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), firstToken[:15]) {
			t.Errorf("quotes the token: %v", err)
		}
	}
	_, err := New(Config{Tokens: "x,y", JWT: true, SkipPaths: "health", RoleAdmin: "read-only", JWKSURL: "ftp://x"})
	for _, want := range []string{"entry 1", "entry 2", "JWT_SKIP_PATHS", "JWT_ROLE_ADMIN", "JWT_ROLES_CLAIM", "JWT_JWKS_URL"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %s in %v", want, err)
		}
	}
}

func TestNothingConfigured(t *testing.T) {
	t.Parallel()
	a, err := New(Config{SkipPaths: "/health,/"})
	if a != nil || err != nil {
		t.Errorf("%v, %v", a, err)
	}
	a.Warm(t.Context()) // of nothing
}

func TestSkips(t *testing.T) {
	t.Parallel()
	a, err := New(Config{Tokens: "admin:" + firstToken, SkipPaths: "/health, /,/status"})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{"/health": true, "/": true, "/status": true, "/status/": false, "/api/v1/status": false, "": false, "/Health": false} {
		if a.Skips(path) != want {
			t.Errorf("%q: %v", path, !want)
		}
	}
}
