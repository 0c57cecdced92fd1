package secure_test

import (
	"bytes"
	"crypto/rand"
	"fmt"

	"viaxdp/internal/base/secure"
)

// A handshake, whose messages carry the data of both sides in clear, and a packet.
func Example() {
	key := make([]byte, secure.MinKey)
	rand.Read(key)
	psk, err := secure.NewPSK(key) // both sides have the same
	if err != nil {
		fmt.Println(err)
		return
	}
	var zero secure.Limits // the defaults
	request, answer := []byte("what the request says"), []byte("what the answer says")

	// Request: requester to acceptor.
	requester, share, err := psk.Request(request)
	if err != nil {
		fmt.Println(err)
		return
	}
	offered, err := psk.Check(share, request)
	if err != nil {
		fmt.Println(err)
		return
	}
	// Accept: acceptor to requester.
	acceptance, err := offered.Accept(answer, zero)
	if err != nil {
		fmt.Println(err)
		return
	}
	confirm, session, err := requester.Finish(acceptance.Share, answer, zero)
	if err != nil {
		fmt.Println(err)
		return
	}
	// Confirm: requester to acceptor, whose session counts from then on.
	fmt.Println("confirmed:", bytes.Equal(confirm, acceptance.Confirm))

	// A packet: header in clear, data sealed.
	header := []byte("header")
	epoch, number := session.Next()
	sealed := session.Seal(nil, []byte("secret"), header)
	if err := acceptance.Session.Open(sealed, header, epoch, number); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", sealed[:len(sealed)-secure.TagLen])
	fmt.Println(acceptance.Session.Open(sealed, header, epoch, number))
	// Output:
	// confirmed: true
	// secret
	// secure: this packet came before, or is too old to tell
}
