// Package types has what WIT has and Go has not: optional values, results and tuples, as the generated bindings use them.
package types

// The tags of options and results.
const (
	OptionNone = 0
	OptionSome = 1
	ResultOk   = 0
	ResultErr  = 1
)

// Unit is the value of a result without one.
type Unit struct{}

// Option is a value or none.
type Option[T any] struct {
	some  bool
	value T
}

// None is the option without a value.
func None[T any]() Option[T] { return Option[T]{} }

// Some is this value.
func Some[T any](value T) Option[T] { return Option[T]{true, value} }

// FromPointer is what the pointer points to; none for nil.
func FromPointer[T any](value *T) Option[T] {
	if value == nil {
		return None[T]()
	}
	return Some(*value)
}

// Pointer points to the value; nil for none.
func (o Option[T]) Pointer() *T {
	if !o.some {
		return nil
	}
	return &o.value
}

// Tag is OptionNone or OptionSome.
func (o Option[T]) Tag() uint8 {
	if o.some {
		return OptionSome
	}
	return OptionNone
}

// Some is the value. It panics where there is none.
func (o Option[T]) Some() T {
	if !o.some {
		panic("an option without a value was read")
	}
	return o.value
}

// SomeOr is the value, or this one where there is none.
func (o Option[T]) SomeOr(value T) T {
	if o.some {
		return o.value
	}
	return value
}

// Result is a value or an error.
type Result[T, E any] struct {
	failed bool
	value  T
	err    E
}

// Ok is a result with a value.
func Ok[T, E any](value T) Result[T, E] { return Result[T, E]{value: value} }

// Err is a result with an error.
func Err[T, E any](err E) Result[T, E] { return Result[T, E]{failed: true, err: err} }

// Tag is ResultOk or ResultErr.
func (r Result[T, E]) Tag() uint8 {
	if r.failed {
		return ResultErr
	}
	return ResultOk
}

// Ok is the value. It panics where there is an error.
func (r Result[T, E]) Ok() T {
	if r.failed {
		panic("the value of a failed result was read")
	}
	return r.value
}

// Err is the error. It panics where there is a value.
func (r Result[T, E]) Err() E {
	if !r.failed {
		panic("the error of a result with a value was read")
	}
	return r.err
}

// IsErr says whether there is an error.
func (r Result[T, E]) IsErr() bool { return r.failed }

// Tuple2 is a pair.
type Tuple2[A, B any] struct {
	F0 A
	F1 B
}
