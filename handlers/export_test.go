package handlers

import "treadle/sessions"

// ProblemRow is a row of the error table, for tests.
type ProblemRow struct {
	Status int
	Title  string
}

// Problems returns the error table, for tests.
func Problems() map[sessions.Code]ProblemRow {
	rows := map[sessions.Code]ProblemRow{}
	for code, r := range problems {
		rows[code] = ProblemRow{r.status, r.title}
	}
	return rows
}

// Decode is decode, for tests.
func Decode(body []byte, req any) error { return decode(body, req) }
