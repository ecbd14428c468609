package pg

// What the tests, which stand outside because pgtest imports this package, need
// from inside.
var (
	MigrateFiles   = migrate
	LoadMigrations = loadMigrations
	ServerError    = serverError
)
