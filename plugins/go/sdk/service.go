package espalier

import (
	"encoding/json"
	"strings"

	"espalier/sdk/bindings/imports/espalier_service_services"
)

// Service is a service of the rollout that the engine answers itself, such as a mock web application, by its name in the task's
// `services`. Rewards and judges ask it, with the engine's key.
type Service string

// ServiceResponse is what a service answered.
type ServiceResponse = espalier_service_services.Response

// shownMax is how many characters of an answer an error shows.
const shownMax = 500

// Get reads what GET of a path answers, as JSON. A status of 400 or more is an error, with what the service says.
func (s Service) Get(path string, into any) error { return s.read("GET", path, nil, into) }

// Post reads what POST of a value to a path answers, as JSON; errors are those of Get. A nil into reads nothing.
func (s Service) Post(path string, body, into any) error {
	text, err := jsonOut("body", body)
	if err != nil {
		return err
	}
	return s.read("POST", path, []byte(text), into)
}

// Request is the answer as it is, whatever its status.
func (s Service) Request(method, path string, body []byte) (ServiceResponse, error) {
	return answered(espalier_service_services.Request(valid(string(s)), valid(method), valid(path), body))
}

func (s Service) read(method, path string, body []byte, into any) error {
	response, err := s.Request(method, path, body)
	if err != nil {
		return err
	}
	return s.decode(path, response, into)
}

func (s Service) decode(path string, response ServiceResponse, into any) error {
	shown := []rune(strings.ToValidUTF8(string(response.Body), "\uFFFD"))
	if len(shown) > shownMax {
		shown = shown[:shownMax]
	}
	if response.Status >= 400 {
		return Invalid("%s%s: status %d: %s", s, path, response.Status, string(shown))
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(response.Body, into); err != nil {
		return Invalid("%s%s: %s: %s", s, path, jsonProblem(err), string(shown))
	}
	return nil
}
