package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/logs"

	"policy.example.io/policy-apiserver/cmd/policy-apiserver/app/options"
	"policy.example.io/policy-apiserver/pkg/apiserver"
	"policy.example.io/policy-apiserver/pkg/feed"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/registry/readonly"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// serveEnv makes the process a server. Its value describes the corpus; the flags are
// those of policy-apiserver.
const serveEnv = "BENCH_QUERY_SERVE"

func (c corpus) String() string {
	return fmt.Sprintf("%d/%d/%d", c.objects, c.namespaces, c.constraints)
}

// Files of the server in its folder.
const (
	loadedFile = "loaded" // how long loading has taken
	openedFile = "opened" // how long opening the index has taken
	writerFile = "writer" // the address at which it is told to write
)

// serve is policy-apiserver with the benchmark in the place of the audit.
func serve(text string) error {
	var c corpus
	if _, err := fmt.Sscanf(text, "%d/%d/%d", &c.objects, &c.namespaces, &c.constraints); err != nil {
		return fmt.Errorf("%s=%q: %w", serveEnv, text, err)
	}
	opts, err := options.New()
	if err != nil {
		return err
	}
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	for _, set := range opts.Flags().FlagSets {
		fs.AddFlagSet(set)
	}
	if err := fs.Parse(os.Args[1:]); err != nil {
		return err
	}
	if err := errors.Join(opts.Complete(), opts.Validate()); err != nil {
		return err
	}
	defer logs.FlushLogs()
	indexOptions := index.DefaultOptions()
	indexOptions.Dir, indexOptions.Tables = opts.DataDir, rows.Schemas()
	started := time.Now()
	db, err := index.Open(indexOptions)
	if err != nil {
		return err
	}
	defer db.Close()
	if n, err := db.Count(rows.AuditResults); err != nil {
		return err
	} else if n == 0 {
		if err := load(db, c); err != nil {
			return err
		}
		return note(opts.DataDir, loadedFile, fmt.Sprint(time.Since(started).Seconds()))
	}
	if err := note(opts.DataDir, openedFile, fmt.Sprint(time.Since(started).Seconds())); err != nil {
		return err
	}
	generic, err := opts.Generic()
	if err != nil {
		return err
	}
	config := apiserver.Config{Generic: generic, Extra: apiserver.ExtraConfig{
		Backend:  readonly.Backend{Index: db, Feed: feed.New(db), Readiness: ready{}},
		Observed: db,
		Damaged:  db.Damaged,
	}}
	server, err := config.Complete().New()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := note(opts.DataDir, writerFile, listener.Addr().String()); err != nil {
		return err
	}
	writer := &http.Server{Handler: writer{db, c}, ReadHeaderTimeout: time.Minute}
	return server.Run(genericapiserver.SetupSignalContext(), func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return db.Run(ctx) })
		group.Go(func() error { <-ctx.Done(); return writer.Close() })
		group.Go(func() error {
			if err := writer.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
		return group.Wait()
	})
}

func note(dir, name, text string) error {
	temporary := filepath.Join(dir, name+".new")
	if err := os.WriteFile(temporary, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(dir, name))
}

type ready struct{}

func (ready) Ready(index.Table) error      { return nil }
func (ready) Stalled() error               { return nil }
func (ready) Notices(index.Table) []string { return nil }

// load writes all findings.
func load(db *index.DB, c corpus) error {
	const batch = 20_000
	for from := 0; from < c.objects; from += batch {
		_, err := db.Update(context.Background(), func(tx *index.Tx) error {
			for i := from; i < min(from+batch, c.objects); i++ {
				if err := put(tx, c, i, ""); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func put(tx *index.Tx, c corpus, i int, message string) error {
	finding := c.finding(i)
	finding.Message = message
	row, err := rows.Encode(finding)
	if err != nil {
		return err
	}
	return tx.Put(row.Table, row.Key, row.Value, row.Attrs)
}

// writer changes the findings whose numbers are in the query, in one transaction.
type writer struct {
	db *index.DB
	c  corpus
}

func (w writer) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	message := changedMessage(time.Now())
	_, err := w.db.Update(request.Context(), func(tx *index.Tx) error {
		for text := range strings.SplitSeq(request.URL.Query().Get("i"), ",") {
			i, err := strconv.Atoi(text)
			if err != nil {
				return err
			}
			if err := put(tx, w.c, i, message); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		http.Error(response, err.Error(), http.StatusInternalServerError)
	}
}
