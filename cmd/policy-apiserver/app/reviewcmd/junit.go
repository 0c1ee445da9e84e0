package reviewcmd

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

// The parts of JUnit's XML that a report has: a suite for each file, and a case for
// each object and constraint.
type (
	junitSuites struct {
		XMLName  xml.Name      `xml:"testsuites"`
		Tests    int           `xml:"tests,attr"`
		Failures int           `xml:"failures,attr"`
		Errors   int           `xml:"errors,attr"`
		Suites   []*junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name      string       `xml:"name,attr"`
		Classname string       `xml:"classname,attr"`
		File      string       `xml:"file,attr,omitempty"`
		Line      int          `xml:"line,attr,omitempty"`
		Failure   *junitDetail `xml:"failure,omitempty"`
		Error     *junitDetail `xml:"error,omitempty"`
		Skipped   *junitDetail `xml:"skipped,omitempty"`
		Output    string       `xml:"system-out,omitempty"`
	}
	junitDetail struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr,omitempty"`
		Text    string `xml:",chardata"`
	}
)

// writeJUnit prints violations that --fail-on does not name as output of cases that
// pass, and what could not be judged as errors.
func writeJUnit(w io.Writer, r *report) error {
	out := &junitSuites{}
	suites := map[string]*junitSuite{}
	suite := func(name string) *junitSuite {
		if suites[name] == nil {
			suites[name] = &junitSuite{Name: name}
			out.Suites = append(out.Suites, suites[name])
		}
		return suites[name]
	}
	for i := range r.Verdicts {
		v := &r.Verdicts[i]
		c := junitCase{Name: v.constraint(), Classname: v.resource(), File: v.File, Line: v.Line}
		if v.Implied != nil {
			c.Classname += " " + v.Implied.Kind
		}
		text := strings.Join(v.messages(), "\n")
		first, _, _ := strings.Cut(text, "\n")
		s := suite(v.File)
		switch {
		case v.unjudged():
			c.Error = &junitDetail{Message: first, Type: string(v.Result), Text: text}
			s.Errors++
		case v.Result == v1alpha1.ReviewNotMatched:
			c.Skipped = &junitDetail{Message: first}
			s.Skipped++
		case r.fails(v):
			c.Failure = &junitDetail{Message: first, Type: v.action(), Text: text}
			s.Failures++
		case v.Result == v1alpha1.ReviewFail:
			c.Output = v.action() + ": " + text
		}
		s.Cases = append(s.Cases, c)
	}
	for i, problem := range r.Problems {
		s := suite("problems")
		s.Cases = append(s.Cases, junitCase{Name: fmt.Sprintf("problem %d", i+1), Classname: "problems", Error: &junitDetail{Message: problem, Text: problem}})
		s.Errors++
	}
	for _, s := range out.Suites {
		s.Tests = len(s.Cases)
		out.Tests, out.Failures, out.Errors = out.Tests+s.Tests, out.Failures+s.Failures, out.Errors+s.Errors
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	encoder := xml.NewEncoder(w)
	encoder.Indent("", "  ")
	if err := encoder.Encode(out); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
