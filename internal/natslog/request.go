package natslog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"treadle/sessions"
)

// codeNoMessage is the server's answer when nothing has the subject.
const codeNoMessage = jetstream.JSErrCodeMessageNotFound

// ask sends a request to the JetStream API, which the leader answers. The answer goes to out unless that is nil; an error of the API
// is a *jetstream.APIError.
func (l *Log) ask(ctx context.Context, method string, in, out any) error {
	_, err := l.request(ctx, method, in, func(m *nats.Msg) error {
		var status struct {
			Error *jetstream.APIError `json:"error"`
		}
		if err := json.Unmarshal(m.Data, &status); err != nil {
			return err
		}
		if status.Error != nil {
			return status.Error
		}
		if out == nil {
			return nil
		}
		return json.Unmarshal(m.Data, out)
	})
	return err
}

// request repeats a request while nobody answers, or the answer is that the server is not ready.
func (l *Log) request(ctx context.Context, method string, in any, check func(*nats.Msg) error) (*nats.Msg, error) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	for {
		answer, err := l.requestOnce(limited, "$JS.API."+method, body)
		if err == nil && check != nil {
			err = check(answer)
		}
		var api *jetstream.APIError
		switch {
		case err == nil:
			return answer, nil
		case errors.As(err, &api) && api.Code < 500, errors.Is(err, nats.ErrConnectionClosed), limited.Err() != nil,
			pause(limited, 20*time.Millisecond) != nil:
			return nil, explain(ctx, err)
		}
	}
}

func (l *Log) requestOnce(ctx context.Context, subject string, body []byte) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, tryPatience)
	defer cancel()
	return l.pub.RequestWithContext(ctx, subject, body)
}

// last returns the newest message with the subject, or 0 if there is none. What was acknowledged before the call is seen.
func (l *Log) last(ctx context.Context, stream, subject string) (seq uint64, data []byte, err error) {
	if l.cfg.Replicas == 1 {
		return l.lastDirect(ctx, stream, subject)
	}
	// Direct answers may come from a replica that lags. The leader's are in JSON, and slow for large messages.
	var answer struct {
		Message struct {
			Seq  uint64 `json:"seq"`
			Data []byte `json:"data"`
		} `json:"message"`
	}
	err = l.ask(ctx, "STREAM.MSG.GET."+stream, lastRequest{subject}, &answer)
	if apiCode(err) == codeNoMessage {
		return 0, nil, nil
	}
	return answer.Message.Seq, answer.Message.Data, err
}

type lastRequest struct {
	LastFor string `json:"last_by_subj"`
}

func (l *Log) lastDirect(ctx context.Context, stream, subject string) (seq uint64, data []byte, err error) {
	answer, err := l.request(ctx, "DIRECT.GET."+stream, lastRequest{subject}, nil)
	if err != nil {
		return 0, nil, err
	}
	if answer.Header.Get("Status") == "404" {
		return 0, nil, nil
	}
	seq, ok := headerNumber(answer.Header, jetstream.SequenceHeader)
	if !ok {
		return 0, nil, fmt.Errorf("%w: the server's answer to a direct get is %q", sessions.ErrUnavailable, answer.Header)
	}
	return seq, answer.Data, nil
}

// lastOfAll returns the last sequence that the stream gave to anything, as its leader knows it.
func (l *Log) lastOfAll(ctx context.Context, stream string) (uint64, error) {
	var answer struct {
		State struct {
			LastSeq uint64 `json:"last_seq"`
		} `json:"state"`
	}
	err := l.ask(ctx, "STREAM.INFO."+stream, struct{}{}, &answer)
	return answer.State.LastSeq, err
}
