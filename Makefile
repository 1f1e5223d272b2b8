.PHONY: test unit lint fmt brokers-up brokers-down brokers-status bench

test: ## everything that CI runs
	go run ./test/all

unit: ## the tests alone, on whatever brokers are up
	go run ./test/all --only brokers,unit --keep

lint:
	go run ./test/all --only lint

fmt: ## gofumpt and import order, with the pinned linter
	go run ./test/all --fmt

brokers-up:
	go run ./test/brokers up

brokers-down:
	go run ./test/brokers down

brokers-status:
	go run ./test/brokers status

bench:
	go test -run '^$$' -bench . -benchmem ./core/... ./adapters/... ./middleware/...
