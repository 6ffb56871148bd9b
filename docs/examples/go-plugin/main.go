// An accelerator plugin of Backend.AI without Python: it speaks the host protocol (docs/reference/accelerators) on
// descriptor 3. Its two devices are pretended; what a vendor replaces is marked with VENDOR.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"sort"
	"strings"
	"sync"
)

const (
	key      = "acme"
	slotName = "acme.device"
	memory   = 8 << 30
)

func main() {
	log.SetFlags(0) // the agent's log has the time; it copies what is printed
	plugin := &plugin{count: 2, broken: map[string]bool{}}
	if err := Serve(plugin.call); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

type plugin struct {
	mutex  sync.RWMutex
	count  int
	broken map[string]bool
	isMade bool
}

// call answers one call of the agent. Calls overlap: what they share is locked.
func (p *plugin) call(call *Call) (any, error) {
	switch call.Method {
	case "load":
		return p.load(call)
	case "make":
		return nil, p.configure(call.Arguments)
	}
	p.mutex.RLock()
	defer p.mutex.RUnlock()
	if !p.isMade {
		return nil, &PluginError{"plugin-error", "the plugin has no settings yet"}
	}
	switch call.Method {
	case "init": // VENDOR: open the library; an error keeps the plugin from starting, and the agent tries again
		return map[string]any{"spec": map[string]any{"kind": "discrete"}}, nil
	case "cleanup":
		return nil, nil
	case "list_devices":
		return p.devices(), nil
	case "configurable_slots":
		return []any{map[string]any{
			"slot_name": slotName, "slot_type": "count", "description": "ACME devices",
			"human_readable_name": "ACME device", "display_unit": "device", "display_icon": "npu1",
		}}, nil
	case "available_slots":
		healthy := p.count - len(p.broken)
		return map[string]any{slotName: fmt.Sprint(healthy)}, nil
	case "variant_namespaces":
		return []any{}, nil
	case "alloc_to_devices":
		return attached(allocated(argument(call, 0))), nil
	case "gather_node_metrics":
		return p.metrics(p.ids()), nil
	case "gather_workload_metrics":
		return p.workloadMetrics(call), nil
	case "gather_process_metrics":
		return map[string]any{}, nil
	case "get_node_info":
		return map[string]any{"driver_version": "1.0", "runtime_version": "1.0"}, nil
	case "hook":
		return hook(call)
	}
	return nil, &PluginError{"not-supported", "this plugin has no method " + call.Method}
}

func (p *plugin) load(call *Call) (any, error) {
	versions, _ := argument(call, 0)["protocols"].([]any)
	for _, version := range versions {
		if version == protocolVersion {
			return map[string]any{
				"protocol": protocolVersion, "key": key, "version": "1.0", "verified_on": nil,
				"key_is_slot_prefix": true, "capabilities": map[string]any{}, "powers": []any{},
			}, nil
		}
	}
	return nil, &PluginError{"not-supported", fmt.Sprintf("the agent speaks %v of the host protocol, this plugin 1", versions)}
}

// configure takes the settings of [plugins.acme]: `devices`, a number, and `broken`, the ids of devices that fail.
func (p *plugin) configure(arguments []any) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	settings, _ := arguments[0].(map[string]any)
	for name, value := range settings {
		switch name {
		case "devices":
			count, isNumber := value.(int)
			if !isNumber || count < 0 || count > 64 {
				return invalid(name, "a number from 0 to 64")
			}
			p.count = count
		case "broken":
			ids, isList := value.([]any)
			if !isList {
				return invalid(name, "a list of ids")
			}
			for _, id := range ids {
				p.broken[fmt.Sprint(id)] = true
			}
		default:
			return invalid(name, "no setting of this plugin; the keys are broken, devices")
		}
	}
	known := map[string]bool{}
	for _, id := range p.ids() {
		known[id] = true
	}
	for id := range p.broken {
		if !known[id] {
			return invalid("broken", "ids of devices, and there is no "+id)
		}
	}
	p.isMade = true
	return nil
}

func invalid(name, expected string) error {
	return &PluginError{"invalid-api-params", fmt.Sprintf("plugins.%s.%s: expected %s", key, name, expected)}
}

// ids lists the devices. VENDOR: by serial number or PCI address; an id stays the same over restarts.
func (p *plugin) ids() []string {
	ids := []string{}
	for number := 0; number < p.count; number++ {
		ids = append(ids, fmt.Sprintf("acme-%d", number))
	}
	return ids
}

func (p *plugin) devices() []any {
	devices := []any{}
	for number, id := range p.ids() {
		device := map[string]any{
			"device_name": key, "device_id": id, "hw_location": fmt.Sprintf("mock:%d", number),
			"model_name": "ACME One", "memory_size": memory, "processing_units": 4,
			// Quantities are text: they are exact.
			"slots": []any{map[string]any{"slot_name": slotName, "slot_type": "count", "amount": "1"}},
		}
		if p.broken[id] {
			device["health"], device["health_reason"] = "unhealthy", "the settings say that it is broken"
		}
		devices = append(devices, device)
	}
	return devices
}

func (p *plugin) metrics(ids []string) []any {
	measurements := []any{}
	for _, id := range ids {
		measurements = append(measurements,
			map[string]any{"key": "acme_mem", "value": 0.0, "capacity": float64(memory), "unit_hint": "bytes", "device_id": id},
			map[string]any{"key": "acme_util", "value": 0.0, "capacity": 100.0, "unit_hint": "percent", "device_id": id})
	}
	return measurements
}

func (p *plugin) workloadMetrics(call *Call) any {
	allocations, _ := argument(call, 0)["allocations"].(map[string]any)
	answer := map[string]any{}
	kernels, _ := call.Arguments[1].([]any)
	for _, kernel := range kernels {
		id := fmt.Sprint(kernel)
		allocation, _ := allocations[id].(map[string]any)
		answer[id] = p.metrics(allocated(allocation))
	}
	return answer
}

// hook prepares a workload, and undoes what it prepared. Each method may be repeated, also by another process of this
// plugin: what must be known then is in the managed state.
func hook(call *Call) (any, error) {
	request := argument(call, 0)
	kept, _ := request["state"].([]any)
	if len(kept) != 2 {
		return nil, errMalformed
	}
	call.State, _ = kept[0].([]byte)
	call.StateVersion, _ = kept[1].(int)
	allocation, _ := request["device_alloc"].(map[string]any)
	ids := allocated(allocation)
	switch request["method"] {
	case "pre_create": // VENDOR: reset the devices, and name their nodes in "devices"
		if len(ids) == 0 {
			return map[string]any{}, nil
		}
		call.State, _ = json.Marshal(map[string]any{"devices": ids})
		return map[string]any{"env_vars": map[string]string{"ACME_VISIBLE_DEVICES": strings.Join(ids, ",")}}, nil
	case "post_terminate": // VENDOR: give back what pre_create took
		call.State = []byte("{}")
	}
	return nil, nil
}

// allocated lists the devices of an allocation: {"slots": {slot: {device: quantity}}}.
func allocated(allocation map[string]any) []string {
	slots, _ := allocation["slots"].(map[string]any)
	devices, _ := slots[slotName].(map[string]any)
	ids := []string{}
	for id := range devices {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	return ids
}

func attached(ids []string) []any {
	devices := []any{}
	for _, id := range ids {
		devices = append(devices, map[string]any{
			"device_id": id, "model_name": "ACME One", "data": map[string]any{"memory": memory},
		})
	}
	return devices
}

func argument(call *Call, number int) map[string]any {
	if number >= len(call.Arguments) {
		return nil
	}
	argument, _ := call.Arguments[number].(map[string]any)
	return argument
}
