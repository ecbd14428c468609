package queue

// Parked is how many pops wait.
func (e *Engine) Parked() int { return e.pops.parked() }
