package espalier

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// decode reads JSON as a type: fields that are missing get the default of their tag; one without a default is an error, as is,
// where strict, a key that the type does not have. Errors say which field, and what was expected.
func decode(text string, into any, strict bool) error {
	value := reflect.ValueOf(into).Elem()
	if err := complete([]byte(text), value, ""); err != nil {
		return err
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	if strict {
		decoder.DisallowUnknownFields()
	}
	if err := decoder.Decode(into); err != nil {
		return errors.New(jsonProblem(err))
	}
	if _, err := decoder.Token(); err != io.EOF {
		return errors.New("more than one value")
	}
	return nil
}

// complete puts defaults into a struct for the keys that its JSON does not have, and refuses what is required and missing.
func complete(text []byte, value reflect.Value, path string) error {
	if value.Kind() != reflect.Struct {
		return nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil || object == nil {
		if json.Valid(text) {
			at := "expected an object"
			if path != "" {
				at = "`" + path + "`: " + at
			}
			return fmt.Errorf("%s, got %s", at, short(text))
		}
		return nil
	}
	for i := range value.NumField() {
		field := value.Type().Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !field.IsExported() || name == "-" {
			continue
		}
		if field.Anonymous && name == "" {
			if err := complete(text, value.Field(i), path); err != nil {
				return err
			}
			continue
		}
		if name == "" {
			name = field.Name
		}
		below := name
		if path != "" {
			below = path + "." + name
		}
		given, ok := object[name]
		fallback, hasDefault := field.Tag.Lookup("default")
		null := bytes.Equal(given, []byte("null"))
		switch {
		case ok && !null:
			if err := complete(given, value.Field(i), below); err != nil {
				return err
			}
		case hasDefault:
			if err := setDefault(value.Field(i), fallback); err != nil {
				return fmt.Errorf("`%s`: default: %w", below, err)
			}
		case !strings.Contains(options, "omit") && field.Type.Kind() != reflect.Pointer && (!ok || !nullable(field.Type)):
			return fmt.Errorf("`%s` is missing", below)
		}
	}
	return nil
}

// nullable says whether a field of this type may be null.
func nullable(kind reflect.Type) bool {
	switch kind.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map:
		return true
	}
	return false
}

func setDefault(value reflect.Value, text string) error {
	for value.Kind() == reflect.Pointer {
		value.Set(reflect.New(value.Type().Elem()))
		value = value.Elem()
	}
	if value.Kind() == reflect.String {
		value.SetString(text)
		return nil
	}
	return json.Unmarshal([]byte(text), value.Addr().Interface())
}

// short is a piece of JSON for a message.
func short(text []byte) string {
	if len(text) > 60 {
		return string(text[:57]) + "..."
	}
	return string(text)
}

// jsonProblem is an error of encoding/json as a person says it: which field, what was expected.
func jsonProblem(err error) string {
	var typed *json.UnmarshalTypeError
	if errors.As(err, &typed) {
		expected := jsonName(typed.Type)
		if typed.Field != "" {
			return fmt.Sprintf("`%s`: expected %s, got %s", typed.Field, expected, typed.Value)
		}
		return fmt.Sprintf("expected %s, got %s", expected, typed.Value)
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// jsonName is what JSON calls the values of a type.
func jsonName(kind reflect.Type) string {
	switch kind.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Pointer:
		return jsonName(kind.Elem())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "an integer from 0"
	}
	return "an integer"
}
