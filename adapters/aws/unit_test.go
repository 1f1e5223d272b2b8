package aws_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"github.com/varal-go/varal/adapters/aws"
	"github.com/varal-go/varal/core/driver"
)

var update = flag.Bool("update", false, "write the golden files")

// TestGoldenRecord: what other programs may rely on does not change by accident.
func TestGoldenRecord(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 30, 12, 0, 0, 123456789, time.UTC)
	full := &driver.Message{
		ID: "m-1", Key: "table-7", Type: "pizza.ordered", Time: at, Body: []byte("margherita"),
		Headers: []driver.Header{{Key: "a", Value: "1"}, {Key: "a", Value: ""}, {Key: "bin", Value: "\x00\xff"}, {Key: "traceparent", Value: "00-0af7-b7ad-01"}, {Key: "tenant", Value: "<\"Ä\">"}},
	}
	var out bytes.Buffer
	for _, c := range []struct {
		name string
		m    *driver.Message
		told bool
	}{
		{"standard queue", full, false},
		{"FIFO queue, the group is the key", full, true},
		{"no text", &driver.Message{ID: "m-2", Time: at, Body: []byte("\x00\xffpizza")}, false},
		{"empty", &driver.Message{ID: "m-3", Time: at}, false},
		{"a character that XML has not", &driver.Message{ID: "m-4", Time: at, Body: []byte("a\x0bb")}, false},
		{"emoji and line breaks", &driver.Message{ID: "m-5", Time: at, Body: []byte("🍕\r\n\t")}, false},
		{"an id that is no text", &driver.Message{ID: "m\x01", Time: at, Body: []byte("x")}, false},
	} {
		body, attrs, size := aws.Encode(c.m, []string{"tenant"}, c.told)
		fmt.Fprintf(&out, "# %s\nbody %q, %d bytes in all\n", c.name, body, size)
		for _, a := range attrs {
			if a.Raw != nil {
				fmt.Fprintf(&out, "%s Binary %q\n", a.Name, a.Raw)
			} else {
				fmt.Fprintf(&out, "%s String %q\n", a.Name, a.Text)
			}
		}
		if len(attrs) > 10 {
			t.Errorf("%s: %d attributes", c.name, len(attrs))
		}
	}
	golden := filepath.Join("testdata", "record.golden")
	if *update {
		if err := os.WriteFile(golden, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, out.Bytes()) {
		t.Errorf("got\n%s\nwant\n%s", out.Bytes(), want)
	}
}

// TestRecordRoundTrip: whatever a message holds, it comes back.
func TestRecordRoundTrip(t *testing.T) {
	t.Parallel()
	trip := func(id, key, kind string, body []byte, names, values []string, told bool) bool {
		m := &driver.Message{ID: "i" + id, Key: key, Type: kind, Time: time.Unix(1, 2).UTC(), Body: body}
		for i, n := range names {
			v := ""
			if i < len(values) {
				v = values[i]
			}
			m.Headers = append(m.Headers, driver.Header{Key: n, Value: v})
		}
		group, says := aws.Group(m)
		if !told {
			group, says = "", false
		}
		text, attrs, size := aws.Encode(m, nil, says)
		n := len(text)
		for _, a := range attrs {
			kind := "String"
			if a.Raw != nil {
				kind = "Binary"
			}
			n += len(a.Name) + len(kind) + len(a.Text) + len(a.Raw)
			if a.Raw == nil && (a.Text == "" || !aws.LegalText(a.Text)) {
				return false
			}
		}
		got, err := aws.Decode(text, attrs, "native", group, time.Time{})
		if len(m.Body) == 0 {
			m.Body, got.Body = nil, nil
		}
		return err == nil && n == size && text != "" && aws.LegalText(text) && reflect.DeepEqual(*m, got)
	}
	if err := quick.Check(trip, &quick.Config{MaxCount: 2000}); err != nil {
		t.Error(err)
	}
}

func TestForeignMessage(t *testing.T) {
	t.Parallel()
	at := time.Unix(5, 0)
	m, err := aws.Decode("{}", []aws.Attribute{{Name: "b", Text: "2"}, {Name: "a", Raw: []byte{0, 255}}}, "n-1", "keyless:x", at)
	want := driver.Message{ID: "n-1", Key: "keyless:x", Time: at, Body: []byte("{}"), Headers: []driver.Header{{Key: "a", Value: "\x00\xff"}, {Key: "b", Value: "2"}}}
	if err != nil || !reflect.DeepEqual(m, want) {
		t.Errorf("%+v, %v", m, err)
	}
}

// FuzzDecode: what comes from a queue is anybody's.
func FuzzDecode(f *testing.F) {
	f.Add("body", `[["a","b"],["c",{"b64":"AA=="}]]`, "b64")
	f.Add("=", `[["a"]]`, "")
	f.Add("QQ==", `[[1,{}]]`, "zip")
	f.Add("x", `[null,["a",null]]`, "b64")
	f.Fuzz(func(t *testing.T, body, headers, encoding string) {
		m, err := aws.Decode(body, []aws.Attribute{
			{Name: driver.HeaderID, Text: "i"}, {Name: "varal-headers", Text: headers}, {Name: "varal-encoding", Text: encoding},
		}, "n", "", time.Time{})
		if err != nil && string(m.Body) != body {
			t.Errorf("a damaged message lost its body: %q", m.Body)
		}
	})
}

func TestDamagedMessages(t *testing.T) {
	t.Parallel()
	for headers, encoding := range map[string]string{"{": "", `[["a"]]`: "", `[["a",1]]`: "", `[["a",{"b64":7}]]`: "", `[["a",null]]`: "", `[["a","b"]]`: "zip", "[]": "b64"} {
		m, err := aws.Decode("not base64!", []aws.Attribute{{Name: driver.HeaderID, Text: "i"}, {Name: "varal-headers", Text: headers}, {Name: "varal-encoding", Text: encoding}}, "n", "", time.Time{})
		if err == nil || string(m.Body) != "not base64!" {
			t.Errorf("%s %s: %q, %v", headers, encoding, m.Body, err)
		}
	}
}

func TestLegalText(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"": true, "a\t\n\r ~": true, "\u00e4\ud7ff\ue000\ufffd\U0001f355\U0010ffff": true,
		"\x00": false, "\x0b": false, "\x1f": false, "\ufffe": false, "\uffff": false, "\xff": false, "a\xc3": false, "\xed\xa0\x80": false,
	} {
		if got := aws.LegalText(s); got != want {
			t.Errorf("%q: %v", s, got)
		}
	}
}

func TestGroupOfAMessage(t *testing.T) {
	t.Parallel()
	group := func(id, key string) string { g, _ := aws.Group(&driver.Message{ID: id, Key: key}); return g }
	if g := group("1", "table-7"); g != "table-7" {
		t.Errorf("a plain key became %q", g)
	}
	if a, b := group("1", ""), group("2", ""); a == b {
		t.Error("messages without a key share a group")
	}
	seen := map[string]string{}
	for _, key := range []string{"a b", "ä", strings.Repeat("k", 129), "\x00", "keyless:1", "table-7"} {
		g := group("1", key)
		if len(g) > 128 || strings.ContainsFunc(g, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Errorf("%q became %q, which AWS does not take", key, g)
		}
		if o, twice := seen[g]; twice {
			t.Errorf("%q and %q share a group", o, key)
		}
		seen[g] = key
	}
	if g := group(strings.Repeat("ä", 100), ""); len(g) > 128 {
		t.Errorf("%q", g)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	c := aws.Config{Prefix: "dev-"}
	queue := func(n string) driver.Destination { return driver.Destination{Shape: driver.Queue, Name: n} }
	topic := driver.Destination{Shape: driver.Topic, Name: "pizzas"}
	for _, tc := range []struct {
		d           driver.Destination
		group, want string
	}{
		{queue("tickets"), "label", "dev-tickets"},
		{queue("tickets.dlq"), "", "dev-tickets--dlq"},
		{queue("tickets").Keyed(8), "", "dev-tickets.fifo"},
		{queue("tickets.fifo"), "", "dev-tickets.fifo"},
		{topic, "billing", "dev-pizzas-billing"},
		{topic.Keyed(1), "billing", "dev-pizzas-billing.fifo"},
		{queue("a b"), "", ""},
		{queue("ä"), "", ""},
		{queue(strings.Repeat("x", 77)), "", ""},
	} {
		got, err := aws.WireName(c, tc.d, tc.group)
		if got != tc.want || (err == nil) != (tc.want != "") || err != nil && driver.ClassOf(err) != driver.Permanent {
			t.Errorf("%v, group %q: %q, %v; want %q", tc.d, tc.group, got, err, tc.want)
		}
	}
}

func TestClasses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code, message string
		status        int
		want          driver.Class
		after         time.Duration
	}{
		{"AWS.SimpleQueueService.NonExistentQueue", "", 400, driver.NotFound, 0},
		{"com.amazonaws.sqs#QueueDoesNotExist", "", 400, driver.NotFound, 0},
		{"NotFound", "", 404, driver.NotFound, 0},
		{"RequestThrottled", "", 403, driver.Transient, time.Second},
		{"ThrottlingException", "", 400, driver.Transient, time.Second},
		{"Whatever", "", 429, driver.Transient, time.Second},
		{"OverLimit", "", 403, driver.Transient, time.Second},
		{"AWS.SimpleQueueService.BatchRequestTooLong", "", 400, driver.TooLarge, 0},
		{"InvalidParameterValue", "One or more parameters are invalid. Reason: Message must be shorter than 262144 bytes.", 400, driver.TooLarge, 0},
		{"InvalidParameter", "Invalid parameter: Message too long", 400, driver.TooLarge, 0},
		{"InvalidParameterValue", "Value x for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for visibility timeout change.", 400, driver.LeaseLost, 0},
		{"InvalidParameterValue", "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]", 400, driver.LeaseLost, 0},
		{"InvalidParameterValue", "Reason: The receipt handle has expired.", 400, driver.LeaseLost, 0},
		{"InvalidParameterValue", "something else", 400, driver.Permanent, 0},
		{"ReceiptHandleIsInvalid", "", 404, driver.LeaseLost, 0},
		{"AWS.SimpleQueueService.MessageNotInflight", "", 400, driver.LeaseLost, 0},
		{"InvalidClientTokenId", "", 403, driver.Denied, 0},
		{"AccessDenied", "", 403, driver.Denied, 0},
		{"SomethingNew", "", 403, driver.Denied, 0},
		{"QueueDeletedRecently", "", 400, driver.Conflict, time.Minute},
		{"QueueNameExists", "", 400, driver.Conflict, 0},
		{"InvalidMessageContents", "", 400, driver.Permanent, 0},
		{"InternalError", "", 500, driver.Ambiguous, 0},
		{"ServiceUnavailable", "", 503, driver.Ambiguous, 0},
	} {
		got, after := aws.ClassOfCode(c.code, c.message, c.status)
		if got != c.want || after != c.after {
			t.Errorf("%s %q: %v after %v, want %v after %v", c.code, c.message, got, after, c.want, c.after)
		}
	}
}

// TestPollsFollowTheLoad: one request where there is little, more with every full answer,
// one again at the first empty one, and never more asked for than there is room for.
func TestPollsFollowTheLoad(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := aws.NewPolls(3)
	top := func(room int) (asked int) {
		for n := p.Ask(room, now); n > 0; n = p.Ask(room, now) {
			asked += n
		}
		return asked
	}
	if n := top(100); n != 10 || p.Open() != 1 {
		t.Fatalf("at first %d asked in %d requests", n, p.Open())
	}
	for want := 2; want <= 5; want++ { // at most 3
		p.Answered(10, 10, false, now)
		top(100)
		if p.Open() != min(want, 3) {
			t.Fatalf("%d requests after %d full answers", p.Open(), want-1)
		}
	}
	p.Answered(10, 0, false, now)
	if n := top(100); n != 0 || p.Open() != 2 {
		t.Errorf("an empty answer was followed by a request for %d, %d are open", n, p.Open())
	}
	p.Answered(10, 3, false, now)
	p.Answered(10, 0, true, now)
	if n := top(100); n != 0 {
		t.Error("after an answer that came early and empty there was no pause")
	}
	now = now.Add(150 * time.Millisecond)
	if n := top(7); n != 7 {
		t.Errorf("with room for 7, %d were asked for", n)
	}
}

func TestWaitLeavesALease(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]time.Duration{
		{0, 30 * time.Second, 20 * time.Second},
		{0, 12 * time.Hour, 20 * time.Second},
		{0, 3 * time.Second, 2 * time.Second},
		{0, time.Second, time.Second},
		{5 * time.Second, 30 * time.Second, 5 * time.Second},
		{20 * time.Second, 6 * time.Second, 4 * time.Second},
	} {
		if got := aws.WaitFor(c[0], c[1]); got != c[2] {
			t.Errorf("wait %v, lease %v: %v, want %v", c[0], c[1], got, c[2])
		}
	}
}

func TestPolicyIsMerged(t *testing.T) {
	t.Parallel()
	const queue, one, two = "arn:aws:sqs:us-east-1:000000000000:q", "arn:aws:sns:us-east-1:000000000000:one", "arn:aws:sns:us-east-1:000000000000:two"
	own := `{"Version":"2008-10-17","Id":"mine","Statement":{"Sid":"own","Effect":"Deny","Principal":"*","Action":"sqs:*","Resource":"*"}}`
	first, missing, err := aws.MergePolicy(own, queue, one)
	if err != nil || !missing {
		t.Fatal(missing, err)
	}
	both, missing, err := aws.MergePolicy(first, queue, two)
	if err != nil || !missing {
		t.Fatal(missing, err)
	}
	if again, missing, err := aws.MergePolicy(both, queue, one); err != nil || missing || again != both {
		t.Errorf("a statement that is there was added again: %v, %v", missing, err)
	}
	var doc struct {
		Version, ID string
		Statement   []struct {
			Sid       string
			Condition map[string]map[string]string
		}
	}
	if err := json.Unmarshal([]byte(both), &doc); err != nil {
		t.Fatal(err)
	}
	var sources []string
	for _, s := range doc.Statement {
		sources = append(sources, s.Condition["ArnEquals"]["aws:SourceArn"])
	}
	if doc.Version != "2008-10-17" || doc.ID != "mine" || doc.Statement[0].Sid != "own" || !slices.Equal(sources, []string{"", one, two}) {
		t.Errorf("%s", both)
	}
	for _, bad := range []string{"{", `{"Statement":7}`} {
		if _, _, err := aws.MergePolicy(bad, queue, one); err == nil {
			t.Errorf("%s was written over", bad)
		}
	}
	for policy, want := range map[string]int{`{"maxReceiveCount":"3"}`: 3, `{"maxReceiveCount":7}`: 7, "": -1, "{": -1, `{}`: -1} {
		if n, ok := aws.MaxReceives(policy); ok != (want >= 0) || ok && n != want {
			t.Errorf("%s: %d, %v", policy, n, ok)
		}
	}
}

// TestTwelveHours: a delivery can be hidden for 12 h in all, and the service says so only
// when it is too late.
func TestTwelveHours(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		out, by time.Duration
		want    int32
		class   driver.Class
	}{
		{time.Minute, 0, 30, 0},
		{time.Minute, 1500 * time.Millisecond, 2, 0},
		{12*time.Hour - 80*time.Second, 0, 20, 0}, // a minute is kept as a margin
		{12*time.Hour - 60*time.Second, 0, 0, driver.LeaseLost},
		{time.Minute, 13 * time.Hour, 0, driver.Unsupported},
	} {
		got, err := aws.Extend(30*time.Second, c.out, c.by)
		if got != c.want || driver.ClassOf(err) != c.class {
			t.Errorf("out for %v, by %v: %d s, %v; want %d s, %v", c.out, c.by, got, err, c.want, c.class)
		}
	}
}
