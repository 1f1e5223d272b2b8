package brokers

import "net/http"

// probeClient keeps no connection open between two probes: its reader would be a
// goroutine too many in a test that restarts a broker and counts what is left.
var probeClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
