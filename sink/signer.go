package sink

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const secretPrefix = "whsec_"

var errSecret = errors.New(`a webhook secret must be "whsec_" followed by the key in base64 (standard alphabet, with padding)`)

// signer signs requests with every secret it has. Without secrets it does nothing.
type signer []*standardwebhooks.Webhook

func newSigner(secrets []string) (signer, error) {
	var s signer
	for _, secret := range strings.Fields(strings.Join(secrets, " ")) {
		// The library takes a key without the prefix, and an empty one.
		if key, found := strings.CutPrefix(secret, secretPrefix); !found || key == "" {
			return nil, errSecret
		}
		webhook, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			return nil, errSecret
		}
		s = append(s, webhook)
	}
	return s, nil
}

// sign sets the Standard Webhooks headers. The time is that of the attempt, not of the event:
// receivers refuse old ones.
func (s signer) sign(header http.Header, id string, at time.Time, body []byte) error {
	if len(s) == 0 {
		return nil
	}
	signatures := make([]string, len(s))
	for i, webhook := range s {
		signature, err := webhook.Sign(id, at, body)
		if err != nil {
			return fmt.Errorf("sign: %w", err)
		}
		signatures[i] = signature
	}
	header.Set(standardwebhooks.HeaderWebhookID, id)
	header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(at.Unix(), 10))
	header.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	return nil
}
