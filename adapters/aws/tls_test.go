package aws_test

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/aws"
	"github.com/varal-go/varal/core/driver"
)

// TestTLS: a server whose certificate is not trusted is Denied; with its CA it is asked.
func TestTLS(t *testing.T) {
	t.Parallel()
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"__type":"com.amazonaws.sqs#QueueDoesNotExist","message":"made up"}`))
	}))
	t.Cleanup(srv.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	q := driver.Destination{Shape: driver.Queue, Name: "q"}
	for want, conf := range map[driver.Class]*aws.TLS{driver.Denied: nil, driver.NotFound: {CA: ca}} {
		d := openAt(t, srv.URL, func(c *aws.Config) { c.TLS = conf })
		if err := d.Publish(within(t, 5*time.Second), q, some(0, 1)); driver.ClassOf(err) != want {
			t.Errorf("TLS %+v: %v, want %v", conf, err, want)
		}
	}
}
