package sink

import (
	"net/http"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const (
	oldSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	newSecret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
)

func verifier(t *testing.T, secret string) *standardwebhooks.Webhook {
	t.Helper()
	v, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestSigner(t *testing.T) {
	t.Parallel()
	body := []byte(`{"test": 2432232314}`)

	t.Run("signs as the Standard Webhooks test vector does", func(t *testing.T) {
		t.Parallel()
		s, err := newSigner([]string{oldSecret})
		if err != nil {
			t.Fatal(err)
		}
		header := http.Header{}
		if err := s.sign(header, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), body); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{
			"webhook-id":        "msg_p5jXN8AQM9LWM0D4loKWxJek",
			"webhook-timestamp": "1614265330",
			"webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
		} {
			if got := header.Get(name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	})

	for name, secrets := range map[string][]string{
		"several secrets":                        {oldSecret, newSecret},
		"several secrets in one string":          {oldSecret + "\n" + newSecret + "\n"},
		"secrets in several strings, some empty": {"", oldSecret, " \n", newSecret},
	} {
		t.Run("every receiver can verify with "+name, func(t *testing.T) {
			t.Parallel()
			s, err := newSigner(secrets)
			if err != nil {
				t.Fatal(err)
			}
			header := http.Header{}
			if err := s.sign(header, "id", time.Now(), body); err != nil {
				t.Fatal(err)
			}
			for _, secret := range []string{oldSecret, newSecret} {
				if err := verifier(t, secret).Verify(body, header); err != nil {
					t.Error(err)
				}
			}
			if n := len(strings.Split(header.Get("webhook-signature"), " ")); n != 2 {
				t.Errorf("%d signatures", n)
			}
			if verifier(t, oldSecret).Verify([]byte("other"), header) == nil {
				t.Error("another body verified too")
			}
		})
	}

	t.Run("sets no header without secrets", func(t *testing.T) {
		t.Parallel()
		s, err := newSigner([]string{"", " \n"})
		if err != nil {
			t.Fatal(err)
		}
		header := http.Header{}
		if err := s.sign(header, "id", time.Now(), body); err != nil || len(header) > 0 {
			t.Errorf("%v, header %v", err, header)
		}
	})

	t.Run("says what a secret must look like, without repeating it", func(t *testing.T) {
		t.Parallel()
		for _, secret := range []string{
			"s3cret", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_", "whsec_s3cret!", "whsec_s3cre",
			"whsec_whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "WHSEC_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
		} {
			_, err := newSigner([]string{oldSecret, secret})
			if err == nil {
				t.Errorf("%q was accepted", secret)
			} else if text := err.Error(); !strings.Contains(text, `"whsec_" followed by the key in base64`) || strings.Contains(text, "s3cre") {
				t.Errorf("%q: %v", secret, err)
			}
		}
	})
}
