package natslog

import (
	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"treadle/sessions"
)

// Deafen makes the log miss everything that is stored, until the function that it returns is called.
func (l *Log) Deafen() (hear func() error, err error) {
	for _, h := range l.allHubs() {
		if err := h.sub.Unsubscribe(); err != nil {
			return nil, err
		}
	}
	return func() error {
		for _, h := range l.allHubs() {
			if err := h.subscribe(); err != nil {
				return err
			}
		}
		// The server has the subscription when it has answered.
		return l.live.Flush()
	}, nil
}

// JetStream gives tests a way around the log.
func (l *Log) JetStream() jetstream.JetStream { return l.js }

// ServerConfig returns what the embedded server runs with.
func (l *Log) ServerConfig() (sync string, always bool) {
	cfg := l.server.server.JetStreamConfig()
	return cfg.SyncInterval.String(), cfg.SyncAlways
}

// RestartServer does what follows a failed write.
func (l *Log) RestartServer() { l.server.restart() }

// FactSubject returns where a session's facts of the kind are stored.
func (l *Log) FactSubject(tenant string, id uuid.UUID, kind sessions.Kind) (string, error) {
	pl, err := l.place(tenant, id)
	return pl.subject(kind), err
}
