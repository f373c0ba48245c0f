package simulator

// Methods of vCenter that govmomi 0.24 does not simulate. tools/vcsim/build.sh adds this file to a copy of the package.

import (
	"fmt"
	"io/ioutil"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator/esx"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// SerialLogs is the directory in which a virtual serial port concentrator stores what guests print.
var SerialLogs string

// AddNetworks adds an opaque network to each datacenter.
func AddNetworks() {
	for _, entity := range Map.All("Datacenter") {
		folder := Map.Get(entity.(*Datacenter).NetworkFolder).(*Folder)
		_ = folder.AddOpaqueNetwork(types.OpaqueNetworkSummary{
			NetworkSummary:    types.NetworkSummary{Name: "br-int", Accessible: true},
			OpaqueNetworkId:   "br-int",
			OpaqueNetworkType: "opaque",
		})
		network := Map.FindByName("br-int", folder.ChildEntity).Reference()
		for _, cluster := range Map.All("ClusterComputeResource") {
			resource := cluster.(*ClusterComputeResource)
			resource.Network = append(resource.Network, network)
		}
	}
}

// --- power ---

// boot is called when a guest starts: it prints a line on its serial port, and runs VMware Tools.
func (vm *VirtualMachine) boot() {
	if vm.Runtime.PowerState != types.VirtualMachinePowerStateSuspended {
		vm.print("guest ready\n")
	}
	vm.Summary.QuickStats.OverallCpuUsage = 120
	vm.Summary.QuickStats.GuestMemoryUsage = 32
	vm.Summary.QuickStats.UptimeSeconds = 1
	vm.Runtime.MaxCpuUsage = 2400
	vm.Summary.Runtime.MaxCpuUsage = 2400
	vm.tools(types.VirtualMachineToolsRunningStatusGuestToolsRunning)
}

func (vm *VirtualMachine) halt() {
	vm.Summary.QuickStats = types.VirtualMachineQuickStats{GuestHeartbeatStatus: types.ManagedEntityStatusGray}
	vm.tools(types.VirtualMachineToolsRunningStatusGuestToolsNotRunning)
}

func (vm *VirtualMachine) tools(status types.VirtualMachineToolsRunningStatus) {
	Map.Update(vm, []types.PropertyChange{{Name: "guest.toolsRunningStatus", Val: string(status)}})
}

func (vm *VirtualMachine) print(text string) {
	for _, device := range vm.Config.Hardware.Device {
		port, ok := device.(*types.VirtualSerialPort)
		if !ok || SerialLogs == "" {
			continue
		}
		if _, ok := port.Backing.(*types.VirtualSerialPortURIBackingInfo); ok {
			name := filepath.Join(SerialLogs, strings.Replace(vm.Config.InstanceUuid, "-", "", -1))
			if file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0644); err == nil {
				_, _ = file.WriteString(text)
				_ = file.Close()
			}
		}
	}
}

// RebootGuest lets the guest boot again: its tools stop, and run again after a second.
func (vm *VirtualMachine) RebootGuest(ctx *Context, req *types.RebootGuest) soap.HasFault {
	body := &methods.RebootGuestBody{}
	if vm.Runtime.PowerState != types.VirtualMachinePowerStatePoweredOn {
		body.Fault_ = Fault("", &types.InvalidPowerState{
			RequestedState: types.VirtualMachinePowerStatePoweredOn, ExistingState: vm.Runtime.PowerState})
		return body
	}
	if vm.Guest.ToolsRunningStatus != string(types.VirtualMachineToolsRunningStatusGuestToolsRunning) {
		body.Fault_ = Fault("", new(types.ToolsUnavailable))
		return body
	}
	vm.tools(types.VirtualMachineToolsRunningStatusGuestToolsNotRunning)
	go func() {
		time.Sleep(time.Second)
		Map.WithLock(vm, func() {
			if vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn {
				vm.print("guest ready\n")
				vm.tools(types.VirtualMachineToolsRunningStatusGuestToolsRunning)
			}
		})
	}()
	body.Res = new(types.RebootGuestResponse)
	return body
}

// AcquireTicket returns the address of the guest's screen.
func (vm *VirtualMachine) AcquireTicket(req *types.AcquireTicket) soap.HasFault {
	body := &methods.AcquireTicketBody{}
	if req.TicketType != "mks" && req.TicketType != "webmks" {
		body.Fault_ = Fault("", &types.InvalidArgument{InvalidProperty: "ticketType"})
		return body
	}
	if vm.Runtime.PowerState != types.VirtualMachinePowerStatePoweredOn {
		body.Fault_ = Fault("", &types.InvalidPowerState{
			RequestedState: types.VirtualMachinePowerStatePoweredOn, ExistingState: vm.Runtime.PowerState})
		return body
	}
	body.Res = &types.AcquireTicketResponse{Returnval: types.VirtualMachineTicket{
		Ticket: "ticket-" + vm.Self.Value, CfgFile: vm.Config.Files.VmPathName, Host: "esx.example.org", Port: 902,
		SslThumbprint: "AA:BB"}}
	return body
}

// --- disks ---

func read(name string, dc *types.ManagedObjectReference) ([]byte, types.BaseMethodFault) {
	file, fault := Map.FileManager().resolve(dc, name)
	if fault != nil {
		return nil, fault
	}
	data, err := ioutil.ReadFile(filepath.Clean(file))
	if err != nil {
		return nil, Map.FileManager().fault(name, err, new(types.FileNotFound))
	}
	return data, nil
}

func write(name string, dc *types.ManagedObjectReference, data []byte) types.BaseMethodFault {
	file, fault := Map.FileManager().resolve(dc, name)
	if fault != nil {
		return fault
	}
	if err := ioutil.WriteFile(file, data, 0600); err != nil {
		return Map.FileManager().fault(name, err, new(types.CannotCreateFile))
	}
	return nil
}

// content returns the data of a disk: of its -flat file, or of its only file if it was uploaded as a sparse disk.
func content(name string, dc *types.ManagedObjectReference) ([]byte, types.BaseMethodFault) {
	data, fault := read(vdmNames(name)[0], dc)
	if fault != nil {
		data, fault = read(name, dc)
	}
	return data, fault
}

// ExtendVirtualDiskTask checks that the disk exists.
func (m *VirtualDiskManager) ExtendVirtualDiskTask(_ *Context, req *types.ExtendVirtualDisk_Task) soap.HasFault {
	task := CreateTask(m, "extendVirtualDisk", func(*Task) (types.AnyType, types.BaseMethodFault) {
		_, fault := read(vdmNames(req.Name)[0], req.Datacenter)
		return nil, fault
	})
	return &methods.ExtendVirtualDisk_TaskBody{
		Res: &types.ExtendVirtualDisk_TaskResponse{Returnval: task.Run()},
	}
}

// CopyVirtualDiskTask copies the data; a sparse disk becomes one with a -flat file.
func (m *VirtualDiskManager) CopyVirtualDiskTask(_ *Context, req *types.CopyVirtualDisk_Task) soap.HasFault {
	task := CreateTask(m, "copyVirtualDisk", func(*Task) (types.AnyType, types.BaseMethodFault) {
		data, fault := content(req.SourceName, req.SourceDatacenter)
		if fault != nil {
			return nil, fault
		}
		if _, fault = read(req.DestName, req.DestDatacenter); fault == nil && !isTrue(req.Force) {
			return nil, Map.FileManager().fault(req.DestName, nil, new(types.FileAlreadyExists))
		}
		if fault = write(vdmNames(req.DestName)[0], req.DestDatacenter, data); fault != nil {
			return nil, fault
		}
		return nil, write(req.DestName, req.DestDatacenter, []byte("# Disk DescriptorFile\n"))
	})
	return &methods.CopyVirtualDisk_TaskBody{
		Res: &types.CopyVirtualDisk_TaskResponse{Returnval: task.Run()},
	}
}

// data returns what a guest has written to a disk, or what the nearest parent contains.
func (vm *VirtualMachine) data(disk *types.VirtualDisk) []byte {
	dc := Map.getEntityDatacenter(vm).Self
	for backing := disk.Backing.(*types.VirtualDiskFlatVer2BackingInfo); backing != nil; backing = backing.Parent {
		if found, fault := content(backing.FileName, &dc); fault == nil && len(found) > 0 {
			return found
		}
	}
	return nil
}

// CloneVMTask copies the devices, and the data of disks. govmomi's method changes the disks of the source.
func (vm *VirtualMachine) CloneVMTask(ctx *Context, req *types.CloneVM_Task) soap.HasFault {
	task := CreateTask(vm, "cloneVm", func(t *Task) (types.AnyType, types.BaseMethodFault) {
		return vm.clone(ctx, req)
	})
	return &methods.CloneVM_TaskBody{Res: &types.CloneVM_TaskResponse{Returnval: task.Run()}}
}

func (vm *VirtualMachine) clone(ctx *Context, req *types.CloneVM_Task) (types.AnyType, types.BaseMethodFault) {
	pool := req.Spec.Location.Pool
	if pool == nil {
		pool = vm.ResourcePool
	}
	vmx := vm.vmx(nil)
	vmx.Path = req.Name
	if ref := req.Spec.Location.Datastore; ref != nil {
		vmx.Datastore = Map.Get(*ref).(*Datastore).Name
	}
	config := types.VirtualMachineConfigSpec{
		Name: req.Name, GuestId: vm.Config.GuestId, NumCPUs: vm.Config.Hardware.NumCPU,
		MemoryMB: int64(vm.Config.Hardware.MemoryMB), ExtraConfig: vm.Config.ExtraConfig,
		Files: &types.VirtualMachineFileInfo{VmPathName: vmx.String()},
	}
	var contents [][]byte
	defaults := object.VirtualDeviceList(esx.VirtualDevice)
	for _, device := range vm.Config.Hardware.Device {
		if defaults.Find(object.VirtualDeviceList(vm.Config.Hardware.Device).Name(device)) != nil {
			continue
		}
		copied := reflect.New(reflect.TypeOf(device).Elem())
		copied.Elem().Set(reflect.ValueOf(device).Elem())
		change := &types.VirtualDeviceConfigSpec{
			Operation: types.VirtualDeviceConfigSpecOperationAdd, Device: copied.Interface().(types.BaseVirtualDevice)}
		if disk, ok := change.Device.(*types.VirtualDisk); ok {
			contents = append(contents, vm.data(disk))
			backing := *disk.Backing.(*types.VirtualDiskFlatVer2BackingInfo)
			backing.FileName, backing.Parent = "", nil
			disk.Backing = &backing
			change.FileOperation = types.VirtualDeviceConfigSpecFileOperationCreate
		}
		config.DeviceChange = append(config.DeviceChange, change)
	}
	res := Map.Get(req.Folder).(vmFolder).CreateVMTask(ctx, &types.CreateVM_Task{
		This: req.Folder, Config: config, Pool: *pool, Host: req.Spec.Location.Host})
	created := Map.Get(res.(*methods.CreateVM_TaskBody).Res.Returnval).(*Task)
	if created.Info.Error != nil {
		return nil, created.Info.Error.Fault
	}
	ref := created.Info.Result.(types.ManagedObjectReference)
	clone := Map.Get(ref).(*VirtualMachine)
	dc := Map.getEntityDatacenter(clone).Self
	for _, device := range clone.Config.Hardware.Device {
		if disk, ok := device.(*types.VirtualDisk); ok && len(contents) > 0 {
			name := disk.Backing.(*types.VirtualDiskFlatVer2BackingInfo).FileName
			_ = write(vdmNames(name)[0], &dc, contents[0])
			contents = contents[1:]
		}
	}
	if req.Spec.Config != nil {
		if fault := clone.configure(req.Spec.Config); fault != nil {
			return nil, fault
		}
	}
	return ref, nil
}

// ExportVm returns a lease from which the disks can be downloaded.
func (vm *VirtualMachine) ExportVm(ctx *Context, req *types.ExportVm) soap.HasFault {
	body := &methods.ExportVmBody{}
	if vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn {
		body.Fault_ = Fault("", &types.InvalidPowerState{
			RequestedState: types.VirtualMachinePowerStatePoweredOff, ExistingState: vm.Runtime.PowerState})
		return body
	}
	lease := NewHttpNfcLease(ctx, vm.Self)
	lease.Info.Lease = lease.Reference()
	for _, device := range vm.Config.Hardware.Device {
		disk, ok := device.(*types.VirtualDisk)
		if !ok {
			continue
		}
		name := fmt.Sprintf("disk-%d.vmdk", len(lease.files))
		file := filepath.Join(path.Dir(vm.log), name)
		if err := ioutil.WriteFile(file, vm.data(disk), 0600); err != nil {
			body.Fault_ = Fault(err.Error(), new(types.CannotCreateFile))
			return body
		}
		lease.files[name] = file
		lease.Info.DeviceUrl = append(lease.Info.DeviceUrl, types.HttpNfcLeaseDeviceUrl{
			Key: fmt.Sprintf("/%s/disk:%d", vm.Self.Value, disk.Key), Disk: types.NewBool(true), TargetId: name,
			Url: (&url.URL{Scheme: "https", Host: "*", Path: path.Join(nfcPrefix, lease.Reference().Value, name)}).String()})
	}
	body.Res = &types.ExportVmResponse{Returnval: lease.Reference()}
	return body
}

// --- extraConfig and extensions ---

// setExtraConfig replaces options of the same name; an empty value removes one.
func (vm *VirtualMachine) setExtraConfig(option types.BaseOptionValue) {
	changed := option.GetOptionValue()
	retained := vm.Config.ExtraConfig[:0:0]
	for _, other := range vm.Config.ExtraConfig {
		if other.GetOptionValue().Key != changed.Key {
			retained = append(retained, other)
		}
	}
	if text, ok := changed.Value.(string); !ok || text != "" {
		retained = append(retained, option)
	}
	vm.Config.ExtraConfig = retained
}

// ExtensionManager stores the registered extensions.
type ExtensionManager struct {
	mo.ExtensionManager
}

func init() {
	kinds["ExtensionManager"] = reflect.TypeOf((*ExtensionManager)(nil)).Elem()
}

// FindExtension returns a registered extension.
func (m *ExtensionManager) FindExtension(req *types.FindExtension) soap.HasFault {
	body := &methods.FindExtensionBody{Res: new(types.FindExtensionResponse)}
	for i := range m.ExtensionList {
		if m.ExtensionList[i].Key == req.ExtensionKey {
			body.Res.Returnval = &m.ExtensionList[i]
		}
	}
	return body
}

// RegisterExtension stores an extension.
func (m *ExtensionManager) RegisterExtension(req *types.RegisterExtension) soap.HasFault {
	m.ExtensionList = append(m.ExtensionList, req.Extension)
	return &methods.RegisterExtensionBody{Res: new(types.RegisterExtensionResponse)}
}
