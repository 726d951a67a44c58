// Evaluates device selectors with Kubernetes' own library: reads make_cases.py's questions, adds the
// answers.
package main

import (
	"context"
	"encoding/json"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/apimachinery/pkg/api/resource"
)

type device struct {
	ProductName string `json:"productName"`
	UUID        string `json:"uuid"`
	Memory      string `json:"memory"`
}

type question struct {
	Expression string `json:"expression"`
	Answers    []any  `json:"answers"`
}

type cases struct {
	Devices   []device    `json:"devices"`
	Questions []*question `json:"questions"`
}

func text(value string) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{StringValue: &value}
}

func asInput(from device) cel.Device {
	return cel.Device{
		Driver: "vgpu.dev",
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"type": text("hami-gpu"), "uuid": text(from.UUID), "productName": text(from.ProductName),
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"memory": {Value: resource.MustParse(from.Memory)}, "cores": {Value: resource.MustParse("100")},
		},
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	var all cases
	check(json.NewDecoder(os.Stdin).Decode(&all))
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true})
	for _, each := range all.Questions {
		each.Answers = nil
		compiled := compiler.CompileCELExpression(each.Expression, cel.Options{})
		if compiled.Error != nil {
			continue
		}
		for _, one := range all.Devices {
			matches, _, err := compiled.DeviceMatches(context.Background(), asInput(one))
			if err != nil {
				each.Answers = append(each.Answers, "error")
			} else {
				each.Answers = append(each.Answers, matches)
			}
		}
	}
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	check(out.Encode(all))
}
