// Records what HAMi's own code decides for pods that ask for devices of vendors other than NVIDIA.
//
// It is compiled into HAMi's package scheduler, because the functions that decide are not exported.
// ../README.md says how it is run. It reads cases (a node, and pods one after the other) and writes
// for each pod: the error of the webhook, or the reasons of the node, or the devices and annotations.
package scheduler

import (
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/Project-HAMi/HAMi/pkg/device"
	"github.com/Project-HAMi/HAMi/pkg/device/ascend"
	"github.com/Project-HAMi/HAMi/pkg/device/iluvatar"
	"github.com/Project-HAMi/HAMi/pkg/scheduler/config"
	"github.com/Project-HAMi/HAMi/pkg/scheduler/policy"
	"github.com/Project-HAMi/HAMi/pkg/util"
)

type recordedCase struct {
	Name string       `json:"name"`
	Node corev1.Node  `json:"node"`
	Pods []corev1.Pod `json:"pods"`
}

type recordedDevice struct {
	UUID   string `json:"uuid"`
	Memory int32  `json:"memory"`
	Cores  int32  `json:"cores"`
}

type recordedAnswer struct {
	Denied      string                        `json:"denied,omitempty"`
	Unserved    bool                          `json:"unserved,omitempty"`
	Refused     string                        `json:"refused,omitempty"`
	Devices     map[string][][]recordedDevice `json:"devices,omitempty"`
	Annotations map[string]string             `json:"annotations,omitempty"`
	Limits      []map[string]string           `json:"limits,omitempty"`
}

type recordedCaseAnswer struct {
	Name string           `json:"name"`
	Pods []recordedAnswer `json:"pods"`
}

func admit(pod *corev1.Pod) (bool, error) {
	found := false
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for _, vendor := range device.GetDevices() {
				here, err := vendor.MutateAdmission(&containers[i], pod)
				if err != nil {
					return false, err
				}
				found = found || here
			}
		}
	}
	return found, nil
}

func limits(pod *corev1.Pod) []map[string]string {
	all := []map[string]string{}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, container := range containers {
			said := map[string]string{}
			for name, quantity := range container.Resources.Limits {
				if strings.Contains(string(name), "/") {
					said[string(name)] = quantity.String()
				}
			}
			all = append(all, said)
		}
	}
	return all
}

func decide(t *testing.T, s *Scheduler, node *corev1.Node, pod *corev1.Pod) recordedAnswer {
	if _, err := admit(pod); err != nil {
		return recordedAnswer{Denied: err.Error()}
	}
	requests := device.Resourcereqs(pod)
	asks := false
	for _, request := range requests {
		asks = asks || len(request) > 0
	}
	if !asks {
		return recordedAnswer{Unserved: true}
	}
	names := []string{node.Name}
	usage, _, failed, err := s.getNodesUsage(&names, pod)
	if err != nil {
		t.Fatal(err)
	}
	scores, err := s.calcScoreWithOptions(usage, requests, pod, failed, false, false)
	if err != nil {
		return recordedAnswer{Denied: err.Error()}
	}
	if len(scores.NodeList) == 0 {
		return recordedAnswer{Refused: failed[node.Name], Limits: limits(pod)}
	}
	chosen := scores.NodeList[0]
	annotations := map[string]string{util.AssignedNodeAnnotations: chosen.NodeID}
	for _, vendor := range device.GetDevices() {
		vendor.PatchAnnotations(pod, &annotations, chosen.Devices)
	}
	s.podManager.AddPod(pod, chosen.NodeID, device.CollapseInitContainerUsage(pod, chosen.Devices))
	return recordedAnswer{Devices: devices(chosen), Annotations: annotations, Limits: limits(pod)}
}

func devices(chosen *policy.NodeScore) map[string][][]recordedDevice {
	all := map[string][][]recordedDevice{}
	for word, containers := range chosen.Devices {
		for _, container := range containers {
			given := []recordedDevice{}
			for _, one := range container {
				given = append(given, recordedDevice{one.UUID, one.Usedmem, one.Usedcores})
			}
			all[word] = append(all[word], given)
		}
	}
	return all
}

func TestRecordVendors(t *testing.T) {
	flags := flag.NewFlagSet("record", flag.PanicOnError)
	ascend.ParseConfig(flags)
	iluvatar.ParseConfig(flags)
	if err := flags.Parse([]string{"--enable-ascend", "--enable-iluvatar"}); err != nil {
		t.Fatal(err)
	}
	device.GPUSchedulerPolicy = util.GPUSchedulerPolicySpread.String()
	config.NodeSchedulerPolicy = util.NodeSchedulerPolicyBinpack.String()

	raw, err := os.ReadFile(os.Getenv("CASES"))
	if err != nil {
		t.Fatal(err)
	}
	cases := []recordedCase{}
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	answers := []recordedCaseAnswer{}
	for _, one := range cases {
		loaded, err := config.LoadConfig(os.Getenv("DEVICE_CONFIG"))
		if err != nil {
			t.Fatal(err)
		}
		if err := config.InitDevicesWithConfig(loaded); err != nil {
			t.Fatal(err)
		}
		s := NewScheduler()
		known := &device.NodeInfo{ID: one.Node.Name, Node: &one.Node, Devices: map[string][]device.DeviceInfo{}}
		for word, vendor := range device.GetDevices() {
			found, err := vendor.GetNodeDevices(one.Node)
			if err != nil {
				continue
			}
			for _, each := range found {
				known.Devices[word] = append(known.Devices[word], *each)
			}
		}
		s.addNode(one.Node.Name, known)
		answer := recordedCaseAnswer{Name: one.Name}
		for i := range one.Pods {
			answer.Pods = append(answer.Pods, decide(t, s, &one.Node, &one.Pods[i]))
		}
		answers = append(answers, answer)
	}
	out, err := json.MarshalIndent(answers, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(os.Getenv("ANSWERS"), out, 0o644); err != nil {
		t.Fatal(err)
	}
}
