package server_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/posthorn/posthorn/conformance/reference"
	_ "github.com/posthorn/posthorn/conformance/server"
	"github.com/posthorn/posthorn/conformance/suite"
)

var (
	update = flag.Bool("update", false, "write testdata/mutations.txt from what fails")
	only   = flag.String("only", "", "run the mutations whose names match this regular expression, instead of all")
	full   = flag.Bool("full", false, "run every spec for every mutation, instead of those near to what it breaks")
)

// expectations is the table of the mutations and what each makes fail. A line is
//
//	mutation: requirement requirement ~operation
//
// where ~operation says that some answer of the operation violates its schema, whatever the specs make of it. A line
// that ends in ... lists what fails at least, for the few defects whose further effects depend on timing, or which would make
// so many specs wait in vain that to see them all takes minutes. Specs
// that it does not name run for it with -full only.
const expectations = "testdata/mutations.txt"

// patience bounds the waits of the specs: long enough for a busy machine, short enough for defects that end in it.
const patience = 3 * time.Second

// capabilities are those of the reference broker, which this version of the suite exercises.
var capabilities = []string{
	suite.CapabilityClock, suite.CapabilityEncryption, suite.CapabilityAuth, suite.CapabilitySigning, suite.CapabilityRetention,
	suite.CapabilityFaults, suite.CapabilityMaintenance, suite.CapabilityWebhooks,
}

// heavy are requirements whose specs move megabytes. They run only for the mutations that are expected to fail them.
var heavy = map[string][]reference.Mutation{
	"http.body.limit":  {reference.SmallerBodyLimit, reference.NoBodyLimit},
	"http.body.depth":  {reference.ShallowBodies, reference.DeepBodies},
	"pop.batch.most":   {reference.BatchUnbounded},
	"push.items.limit": {reference.SmallerItemLimit, reference.LargerItemLimit},
}

// uncaught are the MUSTs that no mutation breaks, with the reason.
var uncaught = map[string]string{}

// tokens are those of the reference broker.
var tokens = map[string]string{
	"read-only": "token-of-the-reader", "write-only": "token-of-the-writer", "read-write": "token-of-the-worker", "admin": "token-of-the-chief",
}

const signingSecret = "0123456789abcdef0123456789abcdef"

func TestMain(m *testing.M) {
	// Hundreds of short-lived brokers: collecting rarely halves the run, and the heap stays below a gigabyte.
	debug.SetGCPercent(800)
	flag.Parse()
	os.Exit(m.Run())
}

// run runs the specs against a reference broker with the mutations, and returns the results that are no pass.
func run(ctx context.Context, specs []*suite.Spec, mutations ...reference.Mutation) (bad []suite.Result, err error) {
	guarded := reference.New(mutations...)
	guarded.RequireTokens(tokens, signingSecret)
	broker := httptest.NewServer(guarded)
	defer broker.Close()
	defer broker.CloseClientConnections() // pops that are parked by a defect
	session, err := suite.Open(ctx, suite.Settings{
		Target: broker.URL, Capabilities: capabilities, Tokens: tokens, SigningSecret: signingSecret, Patience: patience,
	})
	if err != nil {
		return nil, err
	}
	for _, spec := range specs {
		if result := session.Execute(ctx, spec); result.Status != suite.Pass {
			bad = append(bad, result)
		}
	}
	return bad, session.Close()
}

func TestReferenceConforms(t *testing.T) {
	t.Parallel()
	results, err := run(t.Context(), suite.Specs())
	if err != nil {
		t.Fatal(err)
	}
	for _, result := range results {
		t.Errorf("%s: %s: %s (%s)", result.Spec.ID(), result.Status, result.Reason, result.Location)
	}
}

// ending is how the suite came out against one mutation.
type ending struct {
	results []suite.Result
	err     error
}

func (e expected) runAlone(ctx context.Context, mutation reference.Mutation) ending {
	results, err := run(ctx, e.specsFor(mutation), mutation)
	return ending{results, err}
}

// runAgain is runAlone for a mutation that had an ending that is not expected. With -update only those specs run that did not pass,
// or are not expected to.
func (e expected) runAgain(ctx context.Context, mutation reference.Mutation, before ending) ending {
	if !*update {
		return e.runAlone(ctx, mutation)
	}
	files := map[string]bool{}
	for _, result := range before.results {
		files[result.Spec.File] = true
	}
	for _, spec := range suite.Specs() {
		files[spec.File] = files[spec.File] || slices.Contains(e[mutation], spec.ID())
	}
	specs := slices.DeleteFunc(e.specsFor(mutation), func(spec *suite.Spec) bool { return !files[spec.File] })
	results, err := run(ctx, specs, mutation)
	return ending{results, err}
}

// effects are the requirements that fail and the operations whose schema is violated, sorted.
func (e ending) effects() []string {
	var all []string
	for _, result := range e.results {
		for _, violation := range result.Violations {
			all = append(all, "~"+violation.Operation)
		}
		if result.Status == suite.Fail && result.Location != "" {
			all = append(all, result.Spec.ID())
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// reportSuiteDefects fails the test for specs that broke down instead of failing: whatever a broker answers, they must
// not.
func (e ending) reportSuiteDefects(t *testing.T) {
	t.Helper()
	for _, result := range e.results {
		if result.Status == suite.Errored {
			t.Errorf("a defect of the suite: %s: %s", result.Spec.ID(), result.Reason)
		}
	}
}

// expected is the table.
type expected map[reference.Mutation][]string

// specsFor lists the specs that run for a mutation: with -full, or when the table has no line for it, all of them.
// Otherwise those that stand in one file with a spec that it makes fail, since the others have been seen to pass when
// the line was written; and with -update also those that no line names, since they may be new. For a line that ends in ...
// it is those that it names.
func (e expected) specsFor(mutation reference.Mutation) []*suite.Spec {
	line := e[mutation]
	near, named := map[string]bool{}, map[string]bool{}
	for _, effects := range e {
		for _, id := range effects {
			named[id] = true
		}
	}
	for _, spec := range suite.Specs() {
		if slices.Contains(line, spec.ID()) {
			near[spec.File] = true
		}
	}
	return slices.DeleteFunc(suite.Specs(), func(spec *suite.Spec) bool {
		if mutations, isHeavy := heavy[spec.ID()]; isHeavy && !slices.Contains(mutations, mutation) {
			return true
		}
		if atLeast(line) && !*full {
			return !slices.Contains(line, spec.ID())
		}
		return !*full && len(line) > 0 && !near[spec.File] && (!*update || named[spec.ID()])
	})
}

// workers is how many mutations run at once. Most of a run is waiting for parked pops, not computing.
const workers = 20

// TestMutations runs specs for each mutation and compares what fails with the table. With -short it takes every eighth
// mutation.
func TestMutations(t *testing.T) {
	t.Parallel()
	table := readExpectations(t)
	mutations := reference.Mutations()
	if testing.Short() {
		mutations = everyEighth(mutations)
	}
	chosen := regexp.MustCompile(*only)
	mutations = slices.DeleteFunc(mutations, func(m reference.Mutation) bool { return !chosen.MatchString(string(m)) })
	endings := make([]ending, len(mutations))
	var (
		running sync.WaitGroup
		slots   = make(chan struct{}, workers)
	)
	for i, mutation := range mutations {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			endings[i] = table.runAlone(t.Context(), mutation)
		})
	}
	running.Wait()

	seen := expected{}
	for i, mutation := range mutations {
		t.Run(string(mutation), func(t *testing.T) {
			got, err := endings[i].effects(), endings[i].err
			if problems := compare(table[mutation], got); err != nil || len(problems) > 0 {
				// A machine that is busy with other things can make a spec late. A defect shows again.
				t.Logf("once more, alone: %v %v", err, problems)
				again := table.runAgain(t.Context(), mutation, endings[i])
				got, err = again.effects(), again.err
				endings[i] = again
			}
			if err != nil {
				t.Fatal(err)
			}
			endings[i].reportSuiteDefects(t)
			seen[mutation] = got
			if !*full { // some violations show in specs that were left out
				seen[mutation] = slices.Compact(slices.Sorted(slices.Values(append(violations(table[mutation]), got...))))
			}
			if *update {
				return
			}
			for _, problem := range compare(table[mutation], got) {
				t.Error(problem)
			}
		})
	}
	if *update {
		writeExpectations(t, table, seen)
	}
}

func everyEighth(mutations []reference.Mutation) []reference.Mutation {
	var some []reference.Mutation
	for i := 0; i < len(mutations); i += 8 {
		some = append(some, mutations[i])
	}
	return some
}

// compare says what differs from a line of the table.
func compare(want, got []string) (problems []string) {
	if len(want) == 0 {
		return []string{fmt.Sprintf("%s has no line for the mutation, which makes these fail: %v", expectations, got)}
	}
	more := atLeast(want)
	for _, id := range want {
		if !*full && strings.HasPrefix(id, "~") {
			continue // it may show in specs that were left out
		}
		if id != "..." && !slices.Contains(got, id) {
			problems = append(problems, id+" does not fail")
		}
	}
	for _, id := range got {
		if !more && !slices.Contains(want, id) {
			problems = append(problems, id+" fails unexpectedly")
		}
	}
	return problems
}

// atLeast says whether a line lists a part of what fails.
func atLeast(line []string) bool { return len(line) > 0 && line[len(line)-1] == "..." }

// violations are the entries of a line that name operations.
func violations(line []string) []string {
	return slices.DeleteFunc(slices.Clone(line), func(id string) bool { return !strings.HasPrefix(id, "~") })
}

func readExpectations(t *testing.T) expected {
	t.Helper()
	file, err := os.Open(expectations)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	table := expected{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if line := lines.Text(); line != "" && !strings.HasPrefix(line, "#") {
			name, effects, _ := strings.Cut(line, ":")
			table[reference.Mutation(name)] = strings.Fields(effects)
		}
	}
	return table
}

// writeExpectations writes the table anew, but leaves lines that end in ... as they are.
func writeExpectations(t *testing.T, old, seen expected) {
	t.Helper()
	var b strings.Builder
	b.WriteString("# What each mutation of the reference broker makes fail; see mutation_test.go. Review every change of it.\n")
	for _, mutation := range reference.Mutations() {
		line, ok := seen[mutation]
		if before := old[mutation]; !ok || atLeast(before) {
			line = before
		}
		fmt.Fprintf(&b, "%s: %s\n", mutation, strings.Join(line, " "))
	}
	if err := os.WriteFile(expectations, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestEveryMustHasASpec holds the suite to the API description: a MUST has a spec, or it is untestable, or it needs a
// capability that this version of the suite does not exercise.
func TestEveryMustHasASpec(t *testing.T) {
	tested := map[string]bool{}
	for _, spec := range suite.Specs() {
		tested[spec.ID()] = true
		if spec.Requirement.Untestable != "" {
			t.Errorf("%s is said to be untestable, but has a spec at %s", spec.ID(), spec.Source())
		}
	}
	for _, requirement := range suite.Description().Requirements() {
		if requirement.Level != "MAY" && exercised(requirement.Needs) && requirement.Untestable == "" && !tested[requirement.ID] {
			t.Errorf("%s has no spec", requirement.ID)
		}
	}
}

// exercised says whether this version of the suite has specs for requirements with the needs.
func exercised(needs []string) bool {
	return !slices.ContainsFunc(needs, func(need string) bool { return !slices.Contains(capabilities, need) })
}

// TestEveryMustHasAMutation shows that no spec of a MUST passes whatever the broker does.
func TestEveryMustHasAMutation(t *testing.T) {
	caught := map[string]bool{}
	table := readExpectations(t)
	for mutation, effects := range table {
		if !slices.Contains(reference.Mutations(), mutation) {
			t.Errorf("%s has a line for the mutation %s, which does not exist", expectations, mutation)
		}
		for _, effect := range effects {
			caught[effect] = true
		}
	}
	for _, requirement := range suite.Description().Requirements() {
		if requirement.Level != "MUST" || !exercised(requirement.Needs) || requirement.Untestable != "" {
			continue
		}
		_, excused := uncaught[requirement.ID]
		switch {
		case !caught[requirement.ID] && !excused:
			t.Errorf("no mutation breaks %s", requirement.ID)
		case caught[requirement.ID] && excused:
			t.Errorf("%s is excused, but a mutation breaks it", requirement.ID)
		}
	}
}
