package espalier

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// SchemaOf is the JSON Schema of a struct type, for settings and for arguments of tools. Names come from `json` tags as
// encoding/json reads them; these tags say more:
//
//	description:"text"          what it is, for people and models
//	default:"10"                the value where none is given: JSON, or text for a string
//	enum:"fast,slow"            the values that are allowed
//	minimum:"1" maximum:"9"     bounds of a number
//	minLength:"1" pattern:"^x"  of a string
//
// A field is required unless it has a default, is a pointer, or has `omitempty` or `omitzero`. Other keys are refused.
func SchemaOf[T any]() string {
	kind := reflect.TypeFor[T]()
	schema, err := schemaOf(kind, nil)
	if err != nil {
		panic(fmt.Sprintf("no schema of %v: %v", kind, err))
	}
	text, err := json.Marshal(schema)
	if err != nil {
		panic(fmt.Sprintf("no schema of %v: %v", kind, err))
	}
	return string(text)
}

type schema = map[string]any

var rawMessage = reflect.TypeFor[json.RawMessage]()

func schemaOf(kind reflect.Type, above []reflect.Type) (schema, error) {
	if kind == rawMessage {
		return schema{}, nil
	}
	switch kind.Kind() {
	case reflect.Bool:
		return schema{"type": "boolean"}, nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return schema{"type": "integer"}, nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return schema{"type": "integer", "minimum": 0}, nil
	case reflect.Float32, reflect.Float64:
		return schema{"type": "number"}, nil
	case reflect.String:
		return schema{"type": "string"}, nil
	case reflect.Interface:
		return schema{}, nil
	case reflect.Pointer:
		return schemaOf(kind.Elem(), above)
	case reflect.Slice, reflect.Array:
		items, err := schemaOf(kind.Elem(), above)
		return schema{"type": "array", "items": items}, err
	case reflect.Map:
		if kind.Key().Kind() != reflect.String {
			return nil, fmt.Errorf("the keys of %v are not strings", kind)
		}
		values, err := schemaOf(kind.Elem(), above)
		return schema{"type": "object", "additionalProperties": values}, err
	case reflect.Struct:
		for _, outer := range above {
			if outer == kind {
				return nil, fmt.Errorf("%v contains itself", kind)
			}
		}
		return schemaOfStruct(kind, append(above, kind))
	}
	return nil, fmt.Errorf("%v has no JSON", kind)
}

func schemaOfStruct(kind reflect.Type, above []reflect.Type) (schema, error) {
	properties := schema{}
	required := []string{}
	for i := range kind.NumField() {
		field := kind.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !field.IsExported() || name == "-" {
			continue
		}
		if field.Anonymous && name == "" && field.Type.Kind() == reflect.Struct {
			inner, err := schemaOfStruct(field.Type, above)
			if err != nil {
				return nil, err
			}
			for key, value := range inner["properties"].(schema) {
				properties[key] = value
			}
			required = append(required, inner["required"].([]string)...)
			continue
		}
		if name == "" {
			name = field.Name
		}
		property, err := schemaOf(field.Type, above)
		if err == nil {
			err = addTags(property, field)
		}
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", field.Name, err)
		}
		properties[name] = property
		_, hasDefault := property["default"]
		optional := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
		if !hasDefault && !optional && field.Type.Kind() != reflect.Pointer {
			required = append(required, name)
		}
	}
	return schema{"type": "object", "properties": properties, "required": required, "additionalProperties": false}, nil
}

// addTags adds what the tags of a field say.
func addTags(property schema, field reflect.StructField) error {
	for _, key := range []string{"description", "pattern"} {
		if text, ok := field.Tag.Lookup(key); ok {
			property[key] = text
		}
	}
	for _, key := range []string{"minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"} {
		text, ok := field.Tag.Lookup(key)
		if !ok {
			continue
		}
		number, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("tag %s:%q: expected a number", key, text)
		}
		property[key] = number
	}
	if text, ok := field.Tag.Lookup("enum"); ok {
		values := []any{}
		for _, text := range strings.Split(text, ",") {
			value, err := valueOf(text, field.Type)
			if err != nil {
				return fmt.Errorf("tag enum:%q: %w", text, err)
			}
			values = append(values, value)
		}
		property["enum"] = values
	}
	if text, ok := field.Tag.Lookup("default"); ok {
		value, err := valueOf(text, field.Type)
		if err != nil {
			return fmt.Errorf("tag default:%q: %w", text, err)
		}
		property["default"] = value
	}
	return nil
}

// valueOf is a value as a tag writes it: JSON that fits the type, or text for a string.
func valueOf(text string, kind reflect.Type) (any, error) {
	for kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	if kind.Kind() == reflect.String {
		return text, nil
	}
	value := reflect.New(kind)
	if err := json.Unmarshal([]byte(text), value.Interface()); err != nil {
		return nil, fmt.Errorf("expected a value of type %v: %w", kind, err)
	}
	return json.RawMessage(text), nil
}
