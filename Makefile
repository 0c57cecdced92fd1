# Short names for the commands of every day; everything works without make.

.PHONY: libvipl libfabric test race lint generate demo bench ci vm vagrant-validate

test:
	go test ./...

race:
	go test -race -p 1 ./...

lint:
	gofmt -l . && go vet ./... && go tool staticcheck ./...

generate: # needs clang, llvm and libbpf-dev
	go generate ./...

demo:
	go run ./cmd/via-xdp demo

bench:
	go test -run '^$$' -bench . -p 1 ./...

ci:
	CI=true bash .ci/run

vm: # QEMU and a kernel are fetched; nothing is installed
	go run ./internal/lab/vm

vagrant-validate: # needs vagrant and vagrant-libvirt
	bash internal/lab/vm/vagrant/validate.sh

libvipl: # needs gcc, make and binutils
	$(MAKE) -C cmd/libvipl

libfabric: # needs libfabric-dev, too
	$(MAKE) -C cmd/libfabric
