//go:build !unix

package measure

import "time"

func processTime() time.Duration { return -1 }
