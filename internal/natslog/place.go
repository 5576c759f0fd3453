package natslog

import (
	"fmt"
	"hash/fnv"
	"regexp"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"treadle/sessions"
)

// tenantSyntax keeps everything out that means something in a subject.
var tenantSyntax = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)

// place is where a session's records are.
type place struct {
	partition int
	// session is <tenant>.<session>.
	session string
}

func (l *Log) place(tenant string, id uuid.UUID) (place, error) {
	if !tenantSyntax.MatchString(tenant) {
		return place{}, fmt.Errorf("the tenant's name %q is not of lower-case letters, digits, _ and -", tenant)
	}
	session := tenant + "." + id.String()
	h := fnv.New32a()
	h.Write([]byte(session))
	return place{partition: int(h.Sum32() % uint32(l.cfg.Partitions)), session: session}, nil
}

func streamName(partition int) string { return "EVT_" + strconv.Itoa(partition) }

func (p place) stream() string { return streamName(p.partition) }

func (p place) prefix() string { return "s." + strconv.Itoa(p.partition) + "." + p.session }

// facts is the one string with which all facts of a session are fenced.
func (p place) facts() string { return p.prefix() + ".e.*" }

// all is every record of the session.
func (p place) all() string { return p.prefix() + ".>" }

func (p place) subject(kind sessions.Kind) string {
	if kind == sessions.KindDelta {
		return p.prefix() + ".d"
	}
	return p.prefix() + ".e." + string(kind)
}

// parseSubject splits s.<p>.<tenant>.<session>.(e.<kind>|d).
func parseSubject(subject string) (session string, kind sessions.Kind, ok bool) {
	parts := strings.Split(subject, ".")
	switch {
	case len(parts) == 6 && parts[0] == "s" && parts[4] == "e":
		return parts[2] + "." + parts[3], sessions.Kind(parts[5]), true
	case len(parts) == 5 && parts[0] == "s" && parts[4] == "d":
		return parts[2] + "." + parts[3], sessions.KindDelta, true
	}
	return "", "", false
}

// owner splits <tenant>.<session>.
func owner(session string) (tenant string, id uuid.UUID, err error) {
	tenant, text, _ := strings.Cut(session, ".")
	id, err = uuid.Parse(text)
	return tenant, id, err
}
