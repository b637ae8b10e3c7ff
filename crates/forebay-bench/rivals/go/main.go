// A rival for `forebay-distance rivals`: amqp091-go doing what our client does there, with a window or a
// prefetch set by hand. Prints what it did as one line of JSON.
//
//	rival publish QUEUE WINDOW SIZE SECONDS      confirmed publishing; the first tenth is not in the rate
//	rival consume QUEUE PREFETCH ACK_EVERY MESSAGES
//
// The broker's URL comes in FOREBAY_URL: it may hold a password, which others could read in an argument.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

type result struct {
	PerS   float64 `json:"per_s"`
	CPUUs  float64 `json:"cpu_us"` // of this process, per message
	P99Us  int64   `json:"p99_us"` // from the call to the confirm; 0 when consuming
	Failed uint64  `json:"failed"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "rival:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 6 {
		return fmt.Errorf("publish QUEUE WINDOW SIZE SECONDS, or consume QUEUE PREFETCH ACK_EVERY MESSAGES")
	}
	queue := os.Args[2]
	var numbers [3]float64
	for index, text := range os.Args[3:] {
		number, err := strconv.ParseFloat(text, 64)
		if err != nil || number <= 0 {
			return fmt.Errorf("%s is no number above 0", text)
		}
		numbers[index] = number
	}
	connection, err := amqp.Dial(os.Getenv("FOREBAY_URL"))
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	var told result
	switch os.Args[1] {
	case "publish":
		told, err = publish(channel, queue, int(numbers[0]), int(numbers[1]), numbers[2])
	case "consume":
		told, err = consume(channel, queue, int(numbers[0]), uint64(numbers[1]), uint64(numbers[2]))
	default:
		err = fmt.Errorf("publish or consume, not %s", os.Args[1])
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(told)
}

type unconfirmed struct {
	called  time.Duration
	confirm *amqp.DeferredConfirmation
}

func publish(channel *amqp.Channel, queue string, window, size int, seconds float64) (result, error) {
	if err := channel.Confirm(false); err != nil {
		return result{}, err
	}
	message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: bytes.Repeat([]byte("x"), size)}
	end := time.Duration(seconds * float64(time.Second))
	first := end / 10
	latencies := make([]int64, 0, 1<<22)
	inFlight := make([]unconfirmed, 0, window)
	var all, failed uint64
	cpu, began := cpuSeconds(), time.Now()
	settle := func(message unconfirmed) {
		acked, now := message.confirm.Wait(), time.Since(began)
		all++
		if !acked {
			failed++
		} else if now >= first && now < end {
			latencies = append(latencies, (now - message.called).Microseconds())
		}
	}
	head := 0
	for {
		called := time.Since(began)
		if called >= end {
			break
		}
		if len(inFlight)-head >= window {
			settle(inFlight[head])
			head++
		}
		confirm, err := channel.PublishWithDeferredConfirmWithContext(context.Background(), "", queue, false, false, message)
		if err != nil {
			return result{}, err
		}
		if head >= window {
			inFlight = append(inFlight[:0], inFlight[head:]...)
			head = 0
		}
		inFlight = append(inFlight, unconfirmed{called, confirm})
		for head < len(inFlight) && inFlight[head].confirm.Acked() {
			settle(inFlight[head])
			head++
		}
	}
	for _, message := range inFlight[head:] {
		settle(message)
	}
	cpu = cpuSeconds() - cpu
	told := result{PerS: float64(len(latencies)) / (end - first).Seconds(), CPUUs: cpu * 1e6 / float64(max(all, 1)), Failed: failed}
	if len(latencies) > 0 {
		slices.Sort(latencies)
		told.P99Us = latencies[len(latencies)*99/100]
	}
	return told, nil
}

func consume(channel *amqp.Channel, queue string, prefetch int, ackEvery, messages uint64) (result, error) {
	if err := channel.Qos(prefetch, 0, false); err != nil {
		return result{}, err
	}
	cpu, began := cpuSeconds(), time.Now()
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return result{}, err
	}
	for number := uint64(1); number <= messages; number++ {
		delivery, more := <-deliveries
		if !more {
			return result{}, fmt.Errorf("the consumer ended after %d messages", number-1)
		}
		if number%ackEvery == 0 || number == messages {
			if err := delivery.Ack(ackEvery > 1); err != nil {
				return result{}, err
			}
		}
	}
	took := time.Since(began).Seconds()
	return result{PerS: float64(messages) / took, CPUUs: (cpuSeconds() - cpu) * 1e6 / float64(messages)}, nil
}

// CPU time of this process so far, user and system.
func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}
