package brokers

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// kafkaConf holds the settings that do not depend on ports and folders. One node, so
// replication factors of 1; short sessions, so that a killed member or broker is
// missed in seconds. With broker.session.timeout.ms as it comes a broker that was killed
// needs 13 s to come back: its own old session must expire first. With 2 s the controller
// fences the broker for a moment of want of a processor, and the cluster names none.
const kafkaConf = `process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.min.heartbeat.interval.ms=500
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=500
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
# Everything is allowed to everyone until a test adds an ACL for its own topic; the
# plain listener and the first user stay allowed even then.
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
`

const kafkaLog = `rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{1}: %m%n
`

func (k kafka) configure(s *site) error {
	return errors.Join(
		write(k.file(s, "log4j2.properties"), kafkaLog, 0o644),
		write(k.file(s, "server.properties"), k.properties(s), 0o644))
}

func (k kafka) properties(s *site) string {
	listeners := []struct {
		name, protocol string
		port           int
	}{
		{"CONTROLLER", "PLAINTEXT", kafkaController},
		{"PLAINTEXT", "PLAINTEXT", kafkaPlain},
		{"SASL_PLAINTEXT", "SASL_PLAINTEXT", kafkaSASL},
		{"TLS", "SSL", kafkaTLS},
		{"MTLS", "SSL", kafkaMTLS},
		{"SASL_TLS", "SASL_SSL", kafkaSASLTLS},
		{"EXPIRED", "SSL", kafkaExpired},
	}
	var bind, advertise, protocols []string
	for _, l := range listeners {
		at := l.name + "://" + s.addr(l.port)
		bind = append(bind, at)
		if l.name != "CONTROLLER" {
			advertise = append(advertise, at)
		}
		protocols = append(protocols, l.name+":"+l.protocol)
	}
	var b strings.Builder
	b.WriteString(kafkaConf)
	for _, kv := range [][2]string{
		{"controller.quorum.voters", "1@" + s.addr(kafkaController)},
		{"listeners", strings.Join(bind, ",")},
		{"advertised.listeners", strings.Join(advertise, ",")},
		{"listener.security.protocol.map", strings.Join(protocols, ",")},
		{"log.dirs", k.file(s, "data")},
		{"super.users", "User:ANONYMOUS;User:" + user + ";User:CN=varal-client"},
	} {
		fmt.Fprintf(&b, "%s=%s\n", kv[0], kv[1])
	}
	k.secure(&b, s)
	return b.String()
}

// secure writes the settings of the listeners with users or certificates.
func (kafka) secure(b *strings.Builder, s *site) {
	dir := s.tlsDir()
	for listener, cert := range map[string]string{"tls": "server", "mtls": "server", "sasl_tls": "server", "expired": "expired"} {
		p := "listener.name." + listener + ".ssl."
		fmt.Fprintf(b, "%skeystore.type=PEM\n%skeystore.location=%s\n", p, p, filepath.Join(dir, cert+"-both.pem"))
		fmt.Fprintf(b, "%struststore.type=PEM\n%struststore.location=%s\n", p, p, filepath.Join(dir, "ca.pem"))
		if listener == "mtls" {
			fmt.Fprintf(b, "%sclient.auth=required\n", p)
		}
	}
	for _, listener := range []string{"sasl_plaintext", "sasl_tls"} {
		p := "listener.name." + listener + "."
		fmt.Fprintf(b, "%splain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_%s=%q user_%s=%q;\n",
			p, user, password, secondUser, secondPassword)
		for _, m := range []string{"scram-sha-256", "scram-sha-512"} {
			fmt.Fprintf(b, "%s%s.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;\n", p, m)
		}
	}
}
