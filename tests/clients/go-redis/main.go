// Does what programs that use go-redis usually do. The argument is the port of the server.
//
// This program prints `restart` when the server is to be killed and started again. It goes on when
// it reads a line. Then the same client must still find what was written before.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const patience = 20 * time.Second

var (
	background = context.Background()
	client     *redis.Client
)

func fail(format string, args ...any) {
	fmt.Printf("FAILED: "+format+"\n", args...)
	os.Exit(1)
}

func must(err error) {
	if err != nil {
		fail("%v", err)
	}
}

// same returns a function that checks a result and its error. The check fails if there is an error,
// or if the result is not the expected one.
func same[T comparable](expected T) func(T, error) {
	return func(found T, err error) {
		must(err)
		if found != expected {
			fail("found %v instead of %v", found, expected)
		}
	}
}

func until(what string, isSo func() bool) {
	for deadline := time.Now().Add(patience); !isSo(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			fail("%s did not come in time", what)
		}
	}
}

func info(name string) string {
	text, err := client.Info(background, "persistence").Result()
	must(err)
	for _, line := range strings.Split(text, "\r\n") {
		if value, isIt := strings.CutPrefix(line, name+":"); isIt {
			return value
		}
	}
	fail("INFO has no field %s", name)
	return ""
}

func values() {
	same("OK")(client.Set(background, "text", "hello", 0).Result())
	same("hello")(client.Get(background, "text").Result())
	if _, err := client.Get(background, "none").Result(); !errors.Is(err, redis.Nil) {
		fail("a key that is not there: %v", err)
	}
	same(false)(client.SetNX(background, "text", "other", 0).Result())
	same(int64(11))(client.Append(background, "text", " world").Result())
	same("world")(client.GetRange(background, "text", -5, -1).Result())
	same(int64(42))(client.IncrBy(background, "number", 42).Result())
	same(42.5)(client.IncrByFloat(background, "number", 0.5).Result())
	found, err := client.MGet(background, "text", "none", "number").Result()
	must(err)
	if found[0] != "hello world" || found[1] != nil || found[2] != "42.5" {
		fail("MGET: %v", found)
	}
	_, err = client.HGet(background, "text", "field").Result()
	if err == nil || !strings.HasPrefix(err.Error(), "WRONGTYPE") {
		fail("a wrong type: %v", err)
	}
}

func pipelines() {
	commands, err := client.Pipelined(background, func(pipe redis.Pipeliner) error {
		for number := 0; number < 1000; number++ {
			pipe.Set(background, fmt.Sprintf("piped:%d", number), number, 0)
		}
		pipe.Get(background, "piped:999")
		return nil
	})
	must(err)
	same("999")(commands[1000].(*redis.StringCmd).Result())
	count := 0
	keys := client.Scan(background, 0, "piped:*", 70).Iterator()
	for keys.Next(background) {
		count++
	}
	must(keys.Err())
	same(1000)(count, nil)
}

func transactions() {
	var total *redis.IntCmd
	_, err := client.TxPipelined(background, func(pipe redis.Pipeliner) error {
		pipe.Set(background, "account", 100, 0)
		total = pipe.DecrBy(background, "account", 30)
		return nil
	})
	must(err)
	same(int64(70))(total.Result())
	withdraw := func(disturb bool) error {
		return client.Watch(background, func(tx *redis.Tx) error {
			balance, err := tx.Get(background, "account").Int()
			must(err)
			if disturb {
				must(client.Set(background, "account", 1000, 0).Err())
			}
			_, err = tx.TxPipelined(background, func(pipe redis.Pipeliner) error {
				pipe.Set(background, "account", balance-1, 0)
				return nil
			})
			return err
		}, "account")
	}
	if err := withdraw(true); !errors.Is(err, redis.TxFailedErr) {
		fail("a transaction that was overtaken: %v", err)
	}
	must(withdraw(false))
	same(999)(client.Get(background, "account").Int())
}

func hashes() {
	type user struct {
		Name string `redis:"name"`
		Age  int    `redis:"age"`
	}
	must(client.HSet(background, "user", user{"Ada", 36}).Err())
	same(int64(37))(client.HIncrBy(background, "user", "age", 1).Result())
	var found user
	must(client.HGetAll(background, "user").Scan(&found))
	same(user{"Ada", 37})(found, nil)
	for number := 0; number < 300; number++ {
		must(client.HSet(background, "many", fmt.Sprintf("f%d", number), number).Err())
	}
	count := 0
	fields := client.HScan(background, "many", 0, "f*", 20).Iterator()
	for fields.Next(background) {
		count++
	}
	must(fields.Err())
	same(600)(count, nil)
	same(int64(2))(client.HDel(background, "many", "f0", "f1", "none").Result())
	random, err := client.HRandFieldWithValues(background, "many", 3).Result()
	must(err)
	same(3)(len(random), nil)
	same("f"+random[0].Value)(random[0].Key, nil)
}

func expiry() {
	must(client.Set(background, "short", "v", 50*time.Millisecond).Err())
	until("the end of a key", func() bool {
		return errors.Is(client.Get(background, "short").Err(), redis.Nil)
	})
	must(client.Set(background, "long", "v", time.Hour).Err())
	left, err := client.TTL(background, "long").Result()
	must(err)
	if left <= 59*time.Minute || left > time.Hour {
		fail("TTL: %v", left)
	}
	same(true)(client.Persist(background, "long").Result())
	same(time.Duration(-1))(client.TTL(background, "long").Result())
	same(true)(client.ExpireAt(background, "long", time.Unix(4102444800, 0)).Result())
}

func snapshots() {
	for round, command := range []func(context.Context) *redis.StatusCmd{client.BgSave, client.BgRewriteAOF} {
		must(command(background).Err())
		for number := 0; number < 1000; number++ {
			must(client.Set(background, fmt.Sprintf("piped:%d", number), number+round+1, 0).Err())
		}
		until("the snapshot", func() bool {
			return info("rdb_bgsave_in_progress")+info("aof_rewrite_in_progress")+info("aof_rewrite_scheduled") == "000"
		})
	}
	same("okok")(info("rdb_last_bgsave_status")+info("aof_last_bgrewrite_status"), nil)
}

func check() {
	same("hello world")(client.Get(background, "text").Result())
	same(999)(client.Get(background, "account").Int())
	same("37")(client.HGet(background, "user", "age").Result())
	same(int64(298))(client.HLen(background, "many").Result())
	same(time.Duration(4102444800) * time.Second)(client.ExpireTime(background, "long").Result())
	for number := 0; number < 1000; number++ {
		same(number + 2)(client.Get(background, fmt.Sprintf("piped:%d", number)).Int())
	}
}

func main() {
	client = redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1], Protocol: 3})
	self, err := client.ClientInfo(background).Result()
	must(err)
	same(3)(self.Resp, nil)
	for _, part := range []func(){values, pipelines, transactions, hashes, expiry, snapshots, check} {
		part()
	}
	fmt.Println("restart")
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	must(err)
	check()
	must(client.Set(background, "text", "again", 0).Err())
	fmt.Println("done")
}
