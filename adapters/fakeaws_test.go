package adapters_test

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// rightKey is the access key that a fake of AWS knows.
const rightKey = "AKIDRIGHT"

// sqsAt is the URL of a server that speaks SQS, with a key it knows.
func sqsAt(addr string) string {
	return "sqs://" + rightKey + ":" + canary + "@us-east-1?endpoint=http://" + addr
}

// fakeAWS is a server that speaks as much of SQS, SNS and STS as the tests need: it has
// every queue and no topic. It says what answers tells, by action, as "status code message";
// $TOKEN in a message is the session token of the request.
func fakeAWS(t *testing.T, answers map[string]string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Amzn-Requestid", "1")
		_, action, isSQS := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
		if !isSQS {
			action = r.FormValue("Action")
		}
		said, says := answers[action]
		switch {
		case !strings.Contains(r.Header.Get("Authorization"), "Credential="+rightKey+"/"):
			refuse(w, isSQS, "403 InvalidClientTokenId The security token included in the request is invalid.")
		case says:
			refuse(w, isSQS, strings.ReplaceAll(said, "$TOKEN", r.Header.Get("X-Amz-Security-Token")))
		default:
			accept(w, r, action)
		}
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func refuse(w http.ResponseWriter, isSQS bool, said string) {
	var status int
	var code string
	_, _ = fmt.Sscan(said, &status, &code) // the cases write them so
	_, message, _ := strings.Cut(said, code+" ")
	if isSQS {
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"__type": "com.amazonaws.sqs#%s", "message": %q}`, code, message)
		return
	}
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "<ErrorResponse><Error><Type>Sender</Type><Code>%s</Code><Message>%s</Message></Error><RequestId>1</RequestId></ErrorResponse>", code, message)
}

func accept(w http.ResponseWriter, r *http.Request, action string) {
	switch action {
	case "GetQueueUrl":
		_, _ = fmt.Fprintf(w, `{"QueueUrl": "http://%s/000000000000/any"}`, r.Host)
	case "SendMessageBatch":
		var in struct {
			Entries []struct {
				ID   string `json:"Id"`
				Body string `json:"MessageBody"`
			} `json:"Entries"`
		}
		var out struct {
			Successful []map[string]string
			Failed     []string
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			refuse(w, true, "400 InvalidParameterValue "+err.Error())
			return
		}
		for _, e := range in.Entries {
			sum := md5.Sum([]byte(e.Body))
			out.Successful = append(out.Successful, map[string]string{"Id": e.ID, "MessageId": e.ID, "MD5OfMessageBody": hex.EncodeToString(sum[:])})
		}
		_ = json.NewEncoder(w).Encode(out)
	case "ListTopics":
		_, _ = fmt.Fprint(w, "<ListTopicsResponse><ListTopicsResult><Topics></Topics></ListTopicsResult></ListTopicsResponse>")
	default:
		refuse(w, true, "400 UnsupportedOperation the fake knows no "+action)
	}
}
