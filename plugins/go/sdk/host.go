package espalier

import (
	"math/rand/v2"
	"time"

	"espalier/sdk/bindings/imports/espalier_base_blobs"
	"espalier/sdk/bindings/imports/espalier_base_clock"
	"espalier/sdk/bindings/imports/espalier_base_random"
)

// sliceMax is the most bytes of a blob or file that one call reads.
const sliceMax = 1 << 20

// Now is the time of the last call of the engine. It does not move in between; time.Now only counts.
func Now() time.Time { return time.UnixMilli(int64(espalier_base_clock.NowMs())) }

// source draws from the engine's stream.
type source struct{ bytes []byte }

func (s *source) Uint64() uint64 {
	if len(s.bytes) < 8 {
		bytes, err := answered(espalier_base_random.Bytes(512))
		if err != nil {
			panic(err)
		}
		s.bytes = bytes
	}
	number := uint64(0)
	for i, one := range s.bytes[:8] {
		number |= uint64(one) << (8 * i)
	}
	s.bytes = s.bytes[8:]
	return number
}

// Rand draws random numbers from the stream that follows from the run's seed, the rollout and the plugin. The functions of
// math/rand give the same numbers in every rollout.
func Rand() *rand.Rand { return rand.New(&source{}) }

// PutBlob keeps bytes, 64 MiB at most, and returns their reference.
func PutBlob(bytes []byte, mediaType string) (string, error) {
	return answered(espalier_base_blobs.Put(bytes, mediaType))
}

// ReadBlob reads a whole blob.
func ReadBlob(reference string) ([]byte, error) {
	return readAll(func(offset uint64) ([]byte, error) {
		return answered(espalier_base_blobs.Read(reference, offset, sliceMax))
	})
}

// readAll reads in slices until one is empty.
func readAll(read func(offset uint64) ([]byte, error)) ([]byte, error) {
	all := []byte{}
	for {
		slice, err := read(uint64(len(all)))
		if err != nil || len(slice) == 0 {
			return all, err
		}
		all = append(all, slice...)
		if len(slice) < sliceMax {
			return all, nil
		}
	}
}
