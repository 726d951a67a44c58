// Command kstatus reads a JSON array of objects and prints a JSON array of what kstatus, the library by
// which Flux and kpt judge health, says of each: {"status": ..., "message": ...}.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type verdict struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

func run() error {
	var objects []json.RawMessage
	if err := json.NewDecoder(os.Stdin).Decode(&objects); err != nil {
		return err
	}
	verdicts := make([]verdict, 0, len(objects))
	for number, raw := range objects {
		var object unstructured.Unstructured
		if err := object.UnmarshalJSON(raw); err != nil {
			return fmt.Errorf("object %d: %w", number, err)
		}
		result, err := status.Compute(&object)
		if err != nil {
			return fmt.Errorf("object %d: %w", number, err)
		}
		verdicts = append(verdicts, verdict{result.Status.String(), result.Message})
	}
	return json.NewEncoder(os.Stdout).Encode(verdicts)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "kstatus:", err)
		os.Exit(1)
	}
}
