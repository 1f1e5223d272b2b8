package aws

import (
	"encoding/json"
	"reflect"
	"strconv"
)

// mergePolicy adds to the policy of a queue that a topic may send to it, and reports
// whether that was missing. What else the policy says stays as it is.
func mergePolicy(policy, queueARN, topicARN string) (merged string, missing bool, err error) {
	doc := map[string]any{}
	if policy != "" {
		if json.Unmarshal([]byte(policy), &doc) != nil {
			return "", false, errPolicy
		}
	}
	var statements []any
	switch s := doc["Statement"].(type) {
	case nil:
	case []any:
		statements = s
	case map[string]any: // one alone may stand without a list
		statements = []any{s}
	default:
		return "", false, errPolicy
	}
	sid := "varal" + hashed(topicARN)[len("sha256:"):][:24]
	for _, s := range statements {
		if m, ok := s.(map[string]any); ok && m["Sid"] == sid {
			return policy, false, nil
		}
	}
	if doc["Version"] == nil {
		doc["Version"] = "2012-10-17"
	}
	doc["Statement"] = append(statements, map[string]any{
		"Sid": sid, "Effect": "Allow", "Principal": map[string]any{"Service": "sns.amazonaws.com"},
		"Action": "sqs:SendMessage", "Resource": queueARN,
		"Condition": map[string]any{"ArnEquals": map[string]any{"aws:SourceArn": topicARN}},
	})
	b, err := json.Marshal(doc)
	return string(b), true, err
}

// maxReceives reads the maxReceiveCount of a redrive policy, a number or a text.
func maxReceives(policy string) (int, bool) {
	var p struct {
		Max any `json:"maxReceiveCount"`
	}
	if policy == "" || json.Unmarshal([]byte(policy), &p) != nil {
		return 0, false
	}
	switch n := p.Max.(type) {
	case float64:
		return int(n), true
	case string:
		i, err := strconv.Atoi(n)
		return i, err == nil
	}
	return 0, false
}

// sameJSON reports whether two texts are the same document, however they are written.
func sameJSON(a, b string) bool {
	var x, y any
	return json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil && reflect.DeepEqual(x, y)
}
