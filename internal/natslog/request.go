package natslog

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// codeNoMessage is the server's answer when nothing has the subject.
const codeNoMessage = jetstream.JSErrCodeMessageNotFound

// ask sends a request to the JetStream API, which the leader answers, and repeats it while nobody does.
// The answer goes to out unless that is nil; an error of the API is a *jetstream.APIError.
func (l *Log) ask(ctx context.Context, method string, in, out any) error {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	for {
		err := l.askOnce(limited, "$JS.API."+method, body, out)
		var api *jetstream.APIError
		if err == nil {
			return nil
		}
		if errors.As(err, &api) && api.Code < 500 || errors.Is(err, nats.ErrConnectionClosed) || limited.Err() != nil {
			return explain(ctx, err)
		}
		if pause(limited, 20*time.Millisecond) != nil {
			return explain(ctx, err)
		}
	}
}

func (l *Log) askOnce(ctx context.Context, subject string, body []byte, out any) error {
	ctx, cancel := context.WithTimeout(ctx, tryPatience)
	defer cancel()
	answer, err := l.pub.RequestWithContext(ctx, subject, body)
	if err != nil {
		return err
	}
	var status struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(answer.Data, &status); err != nil {
		return err
	}
	if status.Error != nil {
		return status.Error
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer.Data, out)
}

// last returns the sequence of the newest message with the subject, as the stream's leader knows it, or 0.
func (l *Log) last(ctx context.Context, stream, subject string) (seq uint64, data []byte, err error) {
	var answer struct {
		Message struct {
			Seq  uint64 `json:"seq"`
			Data []byte `json:"data"`
		} `json:"message"`
	}
	request := struct {
		LastFor string `json:"last_by_subj"`
	}{subject}
	err = l.ask(ctx, "STREAM.MSG.GET."+stream, request, &answer)
	if apiCode(err) == codeNoMessage {
		return 0, nil, nil
	}
	return answer.Message.Seq, answer.Message.Data, err
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
