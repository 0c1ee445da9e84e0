package conformance

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/generated/informers/externalversions"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// TestInformersOfAllClients runs the informers of the three kinds of client, with a
// stream and with pages as their initial state, and compares their caches with the
// index after it has changed.
func TestInformersOfAllClients(t *testing.T) {
	const n = 1200 // more than two pages
	resource := v1alpha1.SchemeGroupVersion.WithResource("auditresults")
	for _, streaming := range []bool{true, false} {
		for client, informerOf := range map[string]func(*server) cache.SharedIndexInformer{
			"typed": func(s *server) cache.SharedIndexInformer {
				return externalversions.NewSharedInformerFactory(s.client, 0).Policy().V1alpha1().AuditResults().Informer()
			},
			"dynamic": func(s *server) cache.SharedIndexInformer {
				client, err := dynamic.NewForConfig(s.config)
				if err != nil {
					s.Fatal(err)
				}
				return dynamicinformer.NewDynamicSharedInformerFactory(client, 0).ForResource(resource).Informer()
			},
			"metadata": func(s *server) cache.SharedIndexInformer {
				client, err := metadata.NewForConfig(s.config)
				if err != nil {
					s.Fatal(err)
				}
				return metadatainformer.NewSharedInformerFactory(client, 0).ForResource(resource).Informer()
			},
		} {
			t.Run(fmt.Sprintf("%s/streaming=%v", client, streaming), func(t *testing.T) {
				clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.WatchListClient, streaming)
				s := start(t)
				s.put(podNames(n)...)
				informer := informerOf(s)
				ctx, stop := context.WithTimeout(context.Background(), time.Minute)
				done := make(chan struct{})
				go func() {
					defer close(done)
					informer.RunWithContext(ctx)
				}()
				defer func() {
					stop()
					<-done
				}()
				if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
					t.Fatal("the informer does not sync")
				}
				s.compareCache(informer, n)
				for i := range 20 {
					s.put(result("ns1", fmt.Sprintf("new%d", i), "x"))
					s.put(result("ns1", fmt.Sprintf("new%d", i), "y"))
					s.delete("ns0", fmt.Sprintf("p%03d", 3*i))
				}
				s.compareCache(informer, n)
			})
		}
	}
}

// compareCache waits until an informer has what the index has, n objects.
func (s *server) compareCache(informer cache.SharedIndexInformer, n int) {
	s.Helper()
	list, err := s.client.PolicyV1alpha1().AuditResults("").List(ctx, metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	want := make([]string, n)
	for i := range list.Items {
		want[i] = list.Items[i].Namespace + "/" + list.Items[i].Name + " " + list.Items[i].ResourceVersion
	}
	slices.Sort(want)
	var got []string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		got = got[:0]
		for _, object := range informer.GetStore().List() {
			accessor, err := meta.Accessor(object)
			if err != nil {
				s.Fatal(err)
			}
			got = append(got, accessor.GetNamespace()+"/"+accessor.GetName()+" "+accessor.GetResourceVersion())
		}
		slices.Sort(got)
		if slices.Equal(want, got) {
			return
		}
	}
	s.Errorf("the informer has %d objects, want %d: %.300v", len(got), len(want), got)
}

// TestWatchOfOneObject is kubectl get -w NAME, in both of its forms.
func TestWatchOfOneObject(t *testing.T) {
	s := start(t)
	s.put(podNames(4)...)
	for _, path := range []string{
		"/watch/namespaces/ns1/auditresults/p001",
		"/namespaces/ns1/auditresults?watch=true&resourceVersion=0&fieldSelector=metadata.name%3Dp001",
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.config.Host+root+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := s.http.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		lines := bufio.NewReader(response.Body)
		for _, want := range []string{
			`{"type":"ADDED","object":{"kind":"AuditResult","apiVersion":"policy.example.io/v1alpha1","metadata":{"name":"p001",`,
			`{"type":"MODIFIED","object":{"kind":"AuditResult","apiVersion":"policy.example.io/v1alpha1","metadata":{"name":"p001",`,
		} {
			line, err := lines.ReadString('\n')
			if err != nil || !strings.HasPrefix(line, want) {
				t.Errorf("%s: %v: %s, want %s", path, err, line, want)
			}
			// Of the first of these it must not hear.
			s.put(result("ns1", "p001b", path+want), result("ns1", "p001", path+want))
		}
	}
}

// TestManyWatches has 2,000 watches, and 10,000 with MANY_WATCHES=yes, and a client that
// reads nothing. It looks whether all others get everything, what a watch
// costs, and whether it costs anything after.
func TestManyWatches(t *testing.T) {
	for _, watches := range []int{2000, 10_000} {
		t.Run(fmt.Sprint(watches), func(t *testing.T) {
			if watches > 2000 && (testing.Short() || os.Getenv("MANY_WATCHES") == "") {
				t.Skip("it takes 1 GiB of memory, and ten times that under the race detector; MANY_WATCHES=yes runs it")
			}
			testManyWatches(t, watches)
		})
	}
}

// inUse returns how many bytes of memory the process uses.
func inUse() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc + stats.StackInuse)
}

// mostPerWatch is more than a watch may take, together with its client.
const mostPerWatch = 256 << 10

func testManyWatches(t *testing.T, watches int) {
	const changes = 10
	s := start(t)
	from := rows.FormatRevision(s.put(podNames(500)...))
	before, memory, delivered := runtime.NumGoroutine(), inUse(), s.metric(`changes_delivered_total{resource="auditresults"}`)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	unread := s.unread(ctx, root+"/auditresults?watch=true&resourceVersion=0")
	var started, ended sync.WaitGroup
	var events atomic.Int64
	// Not all at once: that would try how fast TLS connections can be made.
	opening := make(chan struct{}, 8)
	for range watches {
		started.Add(1)
		opening <- struct{}{}
		ended.Go(func() {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.config.Host+root+"/auditresults?watch=true&resourceVersion="+from, nil)
			if err != nil {
				t.Error(err)
			}
			response, err := s.http.Do(request)
			<-opening
			started.Done()
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			for lines := bufio.NewReader(response.Body); ; events.Add(1) {
				if _, err := lines.ReadSlice('\n'); err != nil {
					return
				}
			}
		})
	}
	started.Wait()
	perWatch := (inUse() - memory) / int64(watches)
	t.Logf("a watch and its client take %d bytes", perWatch)
	if perWatch > mostPerWatch {
		t.Errorf("a watch and its client take %d bytes, and may take %d", perWatch, mostPerWatch)
	}
	if got := s.metric(`watchers{resource="auditresults"}`); got != float64(watches+1) {
		t.Errorf("%v watches are counted, and there are %d", got, watches+1)
	}
	for i := range changes {
		s.put(result("a", "changing", fmt.Sprint(i, strings.Repeat("x", 1000))))
	}
	for deadline := time.Now().Add(time.Minute); events.Load() < int64(watches*changes) && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	if got := events.Load(); got != int64(watches*changes) {
		t.Errorf("%d events, want %d", got, watches*changes)
	}
	if got := s.metric(`changes_delivered_total{resource="auditresults"}`) - delivered; got < float64(watches*changes) {
		t.Errorf("%v changes are counted, want %d", got, watches*changes)
	}
	// More than any buffer between the server and the client that does not read.
	for i := range 20 {
		var results []*v1alpha1.AuditResult
		for k := range 500 {
			results = append(results, result("b", fmt.Sprintf("p%d", k), fmt.Sprint(i, strings.Repeat("y", 2000))))
		}
		s.put(results...)
		if i == 0 {
			stop()
			ended.Wait()
		}
	}
	if got := s.metric("max_lag_revisions"); got < 1000 {
		t.Errorf("the client that reads nothing is %v revisions behind", got)
	}
	if got := s.do(http.MethodGet, "/readyz", ""); got.code != http.StatusOK {
		t.Errorf("readyz: %d %s", got.code, got.body)
	}
	if got := s.do(http.MethodGet, root+"/auditresults?limit=1", ""); got.code != http.StatusOK {
		t.Errorf("list: %d %s", got.code, got.body)
	}
	unread.Close()
	s.http.CloseIdleConnections()
	for deadline := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > before+50 && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
	if got := runtime.NumGoroutine(); got > before+50 {
		t.Errorf("there are %d goroutines, and were %d", got, before)
	}
}

// TestSlowWatcher ends a watch whose client has fallen behind the history with 410, so
// that it begins anew.
func TestSlowWatcher(t *testing.T) {
	s := start(t)
	s.put(podNames(1)...)
	dropped := s.metric(`watchers_dropped_total{resource="auditresults"}`)
	client := s.unread(t.Context(), root+"/auditresults?watch=true&resourceVersion=0")
	defer client.Close()
	reader := bufio.NewReader(client)
	for line := ""; !strings.HasPrefix(line, `{"type":"ADDED"`); {
		var err error
		if line, err = reader.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	// More than connections buffer, and more than the feed keeps in memory.
	for i := range 45 {
		var results []*v1alpha1.AuditResult
		for k := range 500 {
			results = append(results, result("b", fmt.Sprintf("p%d", k), fmt.Sprint(i, strings.Repeat("y", 2000))))
		}
		s.put(results...)
	}
	s.compact()
	text, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	// Between the events are the sizes of chunks.
	last := ""
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, `{"type":`) {
			last = line
		}
	}
	if !strings.HasPrefix(last, `{"type":"ERROR","object":{"kind":"Status"`) || !strings.Contains(last, `"code":410`) {
		t.Errorf("the watch ends with %.300s", last)
	}
	if got := s.metric(`watchers_dropped_total{resource="auditresults"}`) - dropped; got != 1 {
		t.Errorf("%v watches are counted as dropped", got)
	}
	// One that was too old from the beginning is none of them.
	if got := s.do(http.MethodGet, root+"/auditresults?watch=true&resourceVersion=5", ""); !strings.Contains(got.body, `"code":410`) {
		t.Errorf("a watch from too old a revision: %s", got.body)
	}
	if got := s.metric(`watchers_dropped_total{resource="auditresults"}`) - dropped; got != 1 {
		t.Errorf("%v watches are counted as dropped", got)
	}
}

// metric returns the value of a metric of the feed, 0 if it has none yet.
func (s *server) metric(name string) float64 {
	s.Helper()
	for line := range strings.Lines(s.do(http.MethodGet, "/metrics", "").body) {
		if value, ok := strings.CutPrefix(line, "policy_apiserver_feed_"+name+" "); ok {
			number, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				s.Fatal(err)
			}
			return number
		}
	}
	return 0
}

// unread sends a request over a connection of its own and reads nothing.
func (s *server) unread(ctx context.Context, path string) *tls.Conn {
	s.Helper()
	config, err := rest.TLSConfigFor(s.config)
	if err != nil {
		s.Fatal(err)
	}
	host, err := url.Parse(s.config.Host)
	if err != nil {
		s.Fatal(err)
	}
	connection, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", host.Host)
	if err != nil {
		s.Fatal(err)
	}
	if _, err := fmt.Fprintf(connection, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", path, host.Host); err != nil {
		s.Fatal(err)
	}
	client, ok := connection.(*tls.Conn)
	if !ok {
		s.Fatalf("a %T", connection)
	}
	return client
}
