// A vCenter simulator: govmomi's simulator with the methods of additions.go. Prints its URL, and ends with its standard input.
package main

import (
	"crypto/tls"
	"flag"
	"fmt"
	"io/ioutil"
	"log"
	"net/url"
	"os"

	_ "github.com/vmware/govmomi/pbm/simulator"
	"github.com/vmware/govmomi/simulator"
)

func main() {
	model := simulator.VPX()
	listen := flag.String("listen", "127.0.0.1:0", "address")
	certificate := flag.String("certificate", "", "file with the TLS certificate")
	key := flag.String("key", "", "file with the TLS key")
	verbose := flag.Bool("verbose", false, "log requests")
	flag.StringVar(&simulator.SerialLogs, "serial-logs", "", "directory of the serial port concentrator")
	flag.IntVar(&model.Cluster, "clusters", 1, "clusters")
	flag.IntVar(&model.ClusterHost, "hosts", 3, "hosts of a cluster")
	flag.Parse()
	if !*verbose {
		log.SetOutput(ioutil.Discard)
	}
	model.Host, model.Machine = 0, 0
	if err := model.Create(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	pair, err := tls.LoadX509KeyPair(*certificate, *key)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	simulator.AddNetworks()
	model.Service.RegisterEndpoints = true
	model.Service.Listen = &url.URL{Host: *listen, User: url.UserPassword("user", "pass")}
	model.Service.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server := model.Service.NewServer()
	fmt.Println(server.URL.Host)
	_, _ = ioutil.ReadAll(os.Stdin)
	model.Remove()
	server.Close()
}
