package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// TestModel writes, lists in pages, gets and watches at random, and compares all
// answers with those of a naive oracle that keeps each state in full.
func TestModel(t *testing.T) {
	s := start(t)
	// The seed of a failure can be put here.
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	m := &model{server: s, rand: rand.New(rand.NewPCG(seed, 0)), states: map[uint64]state{}}
	m.first = s.db.Revision()
	m.oldest, m.current = m.first, m.first
	m.states[m.first] = state{}
	steps := []func(){m.write, m.write, m.write, m.list, m.list, m.get, m.watch}
	for i := range 600 {
		if i%200 == 199 {
			m.compact()
			continue
		}
		steps[m.rand.IntN(len(steps))]()
		if t.Failed() {
			t.Fatalf("at step %d of seed %d", i, seed)
		}
	}
	m.checkWatches()
}

// state has the objects at a revision, by namespace/name.
type state map[string]*v1alpha1.AuditResult

type change struct {
	revision uint64
	old, new *v1alpha1.AuditResult
}

// model is the oracle.
type model struct {
	*server
	rand    *rand.Rand
	states  map[uint64]state
	changes []change
	watches []*modelWatch
	// oldest is the revision from which on the history is kept.
	first, oldest, current uint64
}

// selection is what a request selects.
type selection struct {
	namespace, fields, labels string
	matches                   func(*v1alpha1.AuditResult) bool
}

func (m *model) selection() selection {
	everything := func(*v1alpha1.AuditResult) bool { return true }
	all := []selection{
		{"", "", "", everything},
		{"", "", "", everything},
		{"", "result=error", "", func(r *v1alpha1.AuditResult) bool { return r.Result == v1alpha1.ResultError }},
		{"", "result!=error", "", func(r *v1alpha1.AuditResult) bool { return r.Result != v1alpha1.ResultError }},
		{"", "owner.name=", "", func(r *v1alpha1.AuditResult) bool { return r.Owner == nil }},
		{"", "owner.name=o1,result=fail", "", func(r *v1alpha1.AuditResult) bool {
			return r.Owner != nil && r.Owner.Name == "o1" && r.Result == v1alpha1.ResultFail
		}},
		{"", "metadata.name=n1", "", func(r *v1alpha1.AuditResult) bool { return r.Name == "n1" }},
		{"", "metadata.name!=n1", "", func(r *v1alpha1.AuditResult) bool { return r.Name != "n1" }},
		{"", "metadata.namespace=b", "", func(r *v1alpha1.AuditResult) bool { return r.Namespace == "b" }},
		{"", "", "color=red", func(r *v1alpha1.AuditResult) bool { return r.Labels["color"] == "red" }},
		{"", "", "color!=red", func(r *v1alpha1.AuditResult) bool { return r.Labels["color"] != "red" }},
		{"", "", "!color", func(r *v1alpha1.AuditResult) bool { _, ok := r.Labels["color"]; return !ok }},
		{"", "", "color in (red,blue)", func(r *v1alpha1.AuditResult) bool { _, ok := r.Labels["color"]; return ok }},
		{"", "result=error", "color", func(r *v1alpha1.AuditResult) bool {
			_, ok := r.Labels["color"]
			return ok && r.Result == v1alpha1.ResultError
		}},
	}
	s := all[m.rand.IntN(len(all))]
	if m.rand.IntN(3) == 0 {
		s.namespace = []string{"a", "b", "nobody"}[m.rand.IntN(3)]
		matches := s.matches
		s.matches = func(r *v1alpha1.AuditResult) bool { return r.Namespace == s.namespace && matches(r) }
	}
	return s
}

func (s selection) path(query url.Values) string {
	path := root
	if s.namespace != "" {
		path += "/namespaces/" + s.namespace
	}
	query.Set("fieldSelector", s.fields)
	query.Set("labelSelector", s.labels)
	return path + "/auditresults?" + query.Encode()
}

// write puts or deletes an object.
func (m *model) write() {
	namespace, name := []string{"a", "b", "c"}[m.rand.IntN(3)], fmt.Sprintf("n%d", m.rand.IntN(6))
	key := namespace + "/" + name
	next := maps.Clone(m.states[m.current])
	c := change{old: next[key]}
	if c.old != nil && m.rand.IntN(3) == 0 {
		c.revision = m.delete(namespace, name)
		delete(next, key)
	} else {
		r := result(namespace, name, fmt.Sprintf("message %d", m.rand.Uint64()))
		r.Labels = nil
		if color := []string{"", "red", "blue"}[m.rand.IntN(3)]; color != "" {
			r.Labels = map[string]string{"color": color}
		}
		if m.rand.IntN(2) == 0 {
			r.Result = v1alpha1.ResultError
		}
		if m.rand.IntN(2) == 0 {
			r.Owner = &v1alpha1.OwnerReference{Kind: "Job", Name: fmt.Sprintf("o%d", m.rand.IntN(2))}
		}
		c.revision = m.put(r)
		r.ResourceVersion = rows.FormatRevision(c.revision)
		next[key], c.new = r, r
	}
	m.states[c.revision], m.current = next, c.revision
	m.changes = append(m.changes, c)
}

// compact makes all revisions but the current one unreadable. Watches have to have
// read what is before.
func (m *model) compact() {
	m.checkWatches()
	m.server.compact()
	m.oldest = m.db.Compacted()
}

// selected returns what a selection selects of a state, in the order of keys.
func (m *model) selected(s selection, revision uint64) []string {
	objects := m.states[revision]
	out := []string{}
	for _, key := range slices.SortedFunc(maps.Keys(objects), func(a, b string) int {
		return strings.Compare(strings.Replace(a, "/", "\x00", 1), strings.Replace(b, "/", "\x00", 1))
	}) {
		if s.matches(objects[key]) {
			out = append(out, line(objects[key]))
		}
	}
	return out
}

// line is an object as it is compared.
func line(r *v1alpha1.AuditResult) string {
	message := ""
	if len(r.Violations) > 0 {
		message = r.Violations[0].Message
	}
	return fmt.Sprintf("%s/%s at %s: %s %s", r.Namespace, r.Name, r.ResourceVersion, r.Result, message)
}

// list reads a list in pages while objects change.
func (m *model) list() {
	s := m.selection()
	query := url.Values{}
	want := m.current
	switch revision := m.revision(); m.rand.IntN(5) {
	case 0:
		query.Set("resourceVersion", "0")
	case 1:
		query.Set("resourceVersion", rows.FormatRevision(revision))
		query.Set("resourceVersionMatch", "NotOlderThan")
	case 2:
		query.Set("resourceVersion", rows.FormatRevision(revision))
		query.Set("resourceVersionMatch", "Exact")
		want = revision
	case 3:
		query.Set("resourceVersion", rows.FormatRevision(revision))
		query.Set("limit", "100")
		want = revision
	}
	if m.rand.IntN(2) == 0 {
		query.Set("limit", fmt.Sprint(1+m.rand.IntN(5)))
		if query.Get("resourceVersion") != "0" && query.Get("resourceVersion") != "" && query.Get("resourceVersionMatch") == "" {
			want = m.parse(query.Get("resourceVersion"))
		}
	}
	current := m.current
	got, expected := []string{}, m.selected(s, want)
	for {
		answer := m.do(http.MethodGet, s.path(query), "application/json")
		if want < m.oldest {
			if answer.code != http.StatusGone {
				m.Errorf("%v at the compacted revision %d: %d: %s", query, want, answer.code, answer.body)
			}
			return
		}
		var page v1alpha1.AuditResultList
		m.into(answer, &page)
		if page.ResourceVersion != rows.FormatRevision(want) {
			m.Errorf("%v: the list is of %s, want %d", query, page.ResourceVersion, want)
		}
		for i := range page.Items {
			got = append(got, line(&page.Items[i]))
		}
		left := int64(len(expected) - len(got))
		switch remaining := page.RemainingItemCount; {
		case remaining != nil && (*remaining != left || page.Continue == "" || s.fields+s.labels != ""):
			m.Errorf("%v: %d remaining, want %d", query, *remaining, left)
		case remaining == nil && page.Continue != "" && s.fields+s.labels == "" && want == current:
			m.Errorf("%v: the number of remaining items is not told", query)
		}
		if page.Continue == "" {
			break
		}
		for k := range query {
			if strings.HasPrefix(k, "resourceVersion") {
				query.Del(k)
			}
		}
		query.Set("continue", page.Continue)
		m.write()
	}
	if diff := cmp.Diff(expected, got); diff != "" {
		m.Errorf("%+v %v (-want +got):\n%s", s, query, diff)
	}
}

// revision returns one of those that there were, compacted ones among them.
func (m *model) revision() uint64 {
	return m.first + uint64(m.rand.Int64N(int64(m.current-m.first)+1))
}

func (m *model) parse(text string) uint64 {
	var revision uint64
	if _, err := fmt.Sscan(text, &revision); err != nil {
		m.Fatal(err)
	}
	return revision
}

func (m *model) get() {
	key := []string{"a", "b", "c"}[m.rand.IntN(3)] + "/" + fmt.Sprintf("n%d", m.rand.IntN(6))
	namespace, name, _ := strings.Cut(key, "/")
	answer := m.do(http.MethodGet, root+"/namespaces/"+namespace+"/auditresults/"+name, "")
	want := m.states[m.current][key]
	if want == nil {
		if answer.code != http.StatusNotFound {
			m.Errorf("%s: %d: %s", key, answer.code, answer.body)
		}
		return
	}
	var got v1alpha1.AuditResult
	if m.into(answer, &got); line(&got) != line(want) {
		m.Errorf("%s: %s, want %s", key, line(&got), line(want))
	}
}

// modelWatch is a watch and the events that it has to get.
type modelWatch struct {
	selection
	query url.Values
	// from is the revision after which it gets changes.
	from uint64
	want []string // of the initial state
	// mayExpire is true if that revision is not kept any more; the feed may still have
	// it in memory.
	mayExpire bool
	events    chan string
	stop      context.CancelFunc
}

// watch starts a watch, which goes on until the next compaction.
func (m *model) watch() {
	w := &modelWatch{selection: m.selection(), query: url.Values{"watch": {"true"}, "timeoutSeconds": {"60"}}, events: make(chan string, 10_000)}
	w.from = m.current
	initial := func() {
		for _, line := range m.selected(w.selection, m.current) {
			w.want = append(w.want, "ADDED "+line)
		}
	}
	switch m.rand.IntN(4) {
	case 0: // as clients have always done
		initial()
	case 1:
		w.query.Set("sendInitialEvents", "true")
		w.query.Set("resourceVersionMatch", "NotOlderThan")
		w.query.Set("resourceVersion", rows.FormatRevision(m.revision()))
		initial()
		if m.rand.IntN(2) == 0 {
			w.query.Set("allowWatchBookmarks", "true")
			w.want = append(w.want, "END "+rows.FormatRevision(m.current))
		}
	case 2:
		w.from = m.revision()
		w.query.Set("resourceVersion", rows.FormatRevision(w.from))
	case 3:
		w.from = m.revision()
		w.query.Set("resourceVersion", rows.FormatRevision(w.from))
		w.query.Set("sendInitialEvents", "false")
		w.query.Set("resourceVersionMatch", "NotOlderThan")
	}
	w.mayExpire = w.from < m.oldest
	ctx, cancel := context.WithCancel(context.Background())
	w.stop = cancel
	m.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.config.Host+w.path(w.query), nil)
	if err != nil {
		m.Fatal(err)
	}
	response, err := m.http.Do(request) //nolint:bodyclose // read closes it
	if err != nil || response.StatusCode != http.StatusOK {
		m.Fatalf("%v: %v %v", w.query, response, err)
	}
	go w.read(response)
	m.watches = append(m.watches, w)
	// What comes before the changes has to be there before there are changes, or else it
	// is of a later state.
	for _, want := range w.want {
		m.expect(w, want)
	}
}

// read turns events into lines.
func (w *modelWatch) read(response *http.Response) {
	defer response.Body.Close()
	for decoder := json.NewDecoder(response.Body); ; {
		var event struct {
			Type   string
			Object json.RawMessage
		}
		if decoder.Decode(&event) != nil {
			w.events <- "closed"
			return
		}
		var object v1alpha1.AuditResult
		var status metav1.Status
		switch err := json.Unmarshal(event.Object, &object); {
		case event.Type == "ERROR":
			if json.Unmarshal(event.Object, &status) == nil {
				w.events <- fmt.Sprintf("ERROR %d %s", status.Code, status.Reason)
			}
		case err != nil:
			w.events <- err.Error()
		case event.Type == "BOOKMARK":
			w.events <- "END " + object.ResourceVersion
		default:
			w.events <- event.Type + " " + line(&object)
		}
	}
}

func (m *model) expect(w *modelWatch, want string) {
	select {
	case got := <-w.events:
		if got != want {
			m.Errorf("watch %s %v: %s, want %s", w.namespace, w.query, got, want)
		}
	case <-time.After(10 * time.Second):
		m.Errorf("watch %s %v: nothing, want %s", w.namespace, w.query, want)
	}
}

// due returns the events of a watch from its revision on.
func (m *model) due(w *modelWatch) (lines []string) {
	for _, c := range m.changes {
		if c.revision <= w.from {
			continue
		}
		before, after := c.old != nil && w.matches(c.old), c.new != nil && w.matches(c.new)
		switch {
		case before && after:
			lines = append(lines, "MODIFIED "+line(c.new))
		case after:
			lines = append(lines, "ADDED "+line(c.new))
		case before:
			gone := c.old.DeepCopy()
			gone.ResourceVersion = rows.FormatRevision(c.revision)
			lines = append(lines, "DELETED "+line(gone))
		}
	}
	return lines
}

// checkWatches compares what the watches have got with the changes, and ends them.
func (m *model) checkWatches() {
	for _, w := range m.watches {
		lines := m.due(w)
		if w.mayExpire {
			select {
			case got := <-w.events:
				if got == "ERROR 410 Expired" {
					lines = []string{"closed"}
					break
				}
				if len(lines) == 0 || got != lines[0] {
					m.Errorf("watch %v: %s, want %v", w.query, got, lines)
					return
				}
				lines = lines[1:]
			case <-time.After(time.Second):
			}
		}
		for _, line := range lines {
			m.expect(w, line)
		}
		select {
		case got := <-w.events:
			m.Errorf("watch %v: %s, and nothing has happened", w.query, got)
		default:
		}
		w.stop()
	}
	m.watches = nil
}

var _ testing.TB = (*model)(nil)
