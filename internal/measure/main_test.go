package measure_test

import (
	"testing"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
