// Package netcut is a TCP proxy for tests that break a connection: cut it, so that both
// ends see it close, or turn it into a black hole, so that neither end sees anything.
package netcut

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy forwards connections to one target. Its methods are safe for concurrent use.
type Proxy struct {
	network, target string
	listener        net.Listener
	running         sync.WaitGroup

	mu     sync.Mutex
	state  state
	healed chan struct{} // closed at the end of a black hole
	links  map[*link]struct{}
	rate   int // bytes a second in one direction of one connection; 0: unlimited
}

// chunk is how many bytes are moved at once.
const chunk = 32 << 10

type state int

const (
	open   state = iota
	cut          // connections are closed as soon as they are accepted
	black        // connections are accepted and kept, nothing moves
	closed       // like cut, for good
)

// New starts a proxy to a target, such as ("tcp", "127.0.0.1:5432") or ("unix",
// "/tmp/.s.PGSQL.5432"), on a free port of 127.0.0.1. It is closed when the test ends.
func New(t testing.TB, network, target string) *Proxy {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("netcut: %v", err)
	}
	p := &Proxy{
		network: network, target: target, listener: listener,
		healed: make(chan struct{}), links: map[*link]struct{}{},
	}
	p.running.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr returns the proxy's host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut closes all connections, and every new one at once, until Heal.
func (p *Proxy) Cut() { p.set(cut) }

// Blackhole stops all bytes, and the news of closed connections, in both directions until
// Heal. New connections are accepted and get no answer. The proxy still acknowledges what
// it is sent, like a load balancer in front of a dead server, so TCP's own timeouts do
// not notice.
func (p *Proxy) Blackhole() { p.set(black) }

// Heal lets new connections through, and those from the black hole go on where they were.
func (p *Proxy) Heal() { p.set(open) }

// Throttle lets so many bytes a second through, in each direction of each connection that is made from now on. What is
// sent faster is taken and kept, as the buffers of a slow network do: the sender is done long before the receiver.
func (p *Proxy) Throttle(bytesPerSecond int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = bytesPerSecond
}

func (p *Proxy) close() {
	p.set(closed)
	_ = p.listener.Close()
	p.running.Wait()
}

func (p *Proxy) set(s state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == closed || p.state == s {
		return
	}
	if p.state == black {
		close(p.healed)
		p.healed = make(chan struct{})
	}
	p.state = s
	if s == cut || s == closed {
		for l := range p.links {
			l.close()
		}
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		if l, ok := p.admit(client); ok {
			p.running.Go(func() { p.serve(l) })
		}
	}
}

// admit registers a new connection, or closes it while the proxy is cut.
func (p *Proxy) admit(client net.Conn) (*link, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == cut || p.state == closed {
		_ = client.Close()
		return nil, false
	}
	l := newLink(client)
	p.links[l] = struct{}{}
	return l, true
}

// serve connects a client to the target and moves bytes until both directions have ended.
func (p *Proxy) serve(l *link) {
	defer func() {
		l.close()
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
	}()
	if !p.pass(l) {
		return
	}
	server, err := (&net.Dialer{}).DialContext(l.ctx, p.network, p.target)
	if err != nil || !l.join(server) {
		return
	}
	var up sync.WaitGroup
	up.Go(func() { p.pump(l, server, p.slow(l, l.client)) })
	p.pump(l, l.client, p.slow(l, server))
	up.Wait()
}

// pass waits out a black hole. It tells whether the link is still there.
func (p *Proxy) pass(l *link) bool {
	for {
		p.mu.Lock()
		s, healed := p.state, p.healed
		p.mu.Unlock()
		if s != black {
			return l.ctx.Err() == nil
		}
		select {
		case <-healed:
		case <-l.ctx.Done():
		}
		if l.ctx.Err() != nil {
			return false
		}
	}
}

// pump moves bytes one way, then passes their end on. After a failed write both
// directions are over.
func (p *Proxy) pump(l *link, to net.Conn, from io.Reader) {
	buf := make([]byte, chunk)
	for {
		n, err := from.Read(buf)
		if !p.pass(l) {
			return
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				l.close()
				return
			}
		}
		if err != nil {
			closeWrite(to)
			return
		}
	}
}

// slow returns what comes from a connection, at the proxy's rate.
func (p *Proxy) slow(l *link, from net.Conn) io.Reader {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rate == 0 {
		return from
	}
	kept := make(chan []byte, 4096)
	p.running.Go(func() {
		defer close(kept)
		for {
			buf := make([]byte, chunk)
			n, err := from.Read(buf)
			select {
			case kept <- buf[:n]:
			case <-l.ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	})
	return &slowReader{l: l, kept: kept, rate: p.rate}
}

// slowReader takes its time.
type slowReader struct {
	l    *link
	kept <-chan []byte
	rate int
}

func (r *slowReader) Read(to []byte) (int, error) {
	bytes, more := <-r.kept
	if !more {
		return 0, io.EOF
	}
	select {
	case <-time.After(time.Duration(len(bytes)) * time.Second / time.Duration(r.rate)):
	case <-r.l.ctx.Done():
	}
	return copy(to, bytes), nil
}

// closeWrite tells the peer that nothing more will come.
func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
		return
	}
	_ = c.Close()
}

// link is one client with its connection to the target.
type link struct {
	client net.Conn
	ctx    context.Context // ends when the link is closed
	cancel context.CancelFunc

	mu     sync.Mutex
	server net.Conn // nil until joined
}

func newLink(client net.Conn) *link {
	l := &link{client: client}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// join adds the connection to the target, or closes it if the link has been closed.
func (l *link) join(server net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		_ = server.Close()
		return false
	}
	l.server = server
	return true
}

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancel()
	_ = l.client.Close()
	if l.server != nil {
		_ = l.server.Close()
	}
}
