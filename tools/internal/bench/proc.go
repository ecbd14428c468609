package bench

import "time"

// CPU is processor time in seconds, user and system together. nil means that it is not known: the process was not
// found, or the system has no /proc.
type CPU struct {
	Broker   *float64 `json:"broker"`
	Postgres *float64 `json:"postgres"` // the postmaster and all its children, also those that ended meanwhile
	Bench    *float64 `json:"bench"`    // this program
}

// since returns the time used between an earlier reading and c.
func (c CPU) since(earlier CPU) CPU {
	minus := func(a, b *float64) *float64 {
		if a == nil || b == nil {
			return nil
		}
		return new(*a - *b)
	}
	return CPU{
		Broker:   minus(c.Broker, earlier.Broker),
		Postgres: minus(c.Postgres, earlier.Postgres),
		Bench:    minus(c.Bench, earlier.Bench),
	}
}

func seconds(d time.Duration) *float64 { return new(d.Seconds()) }

// processes are the processes whose time is measured; 0 means unknown.
type processes struct {
	broker     int
	postmaster int
}
