"""Errors of networks, ports, addresses and security groups."""

from nova.exception.base import Conflict, Forbidden, Invalid, NotFound, NovaException, ServiceUnavailable


class NetworkNotFound(NotFound):
    template = "Network {network_id} could not be found."


class NetworkAmbiguous(Conflict):
    template = "Multiple possible networks found, use a Network ID to be more specific."


class NetworkInUse(Conflict):
    template = "Network {network_id} is still in use."


class NetworkDuplicate(Conflict):
    template = "Network {name} or its CIDR {cidr} already exists."


class NoMoreNetworks(Invalid):
    template = "No network is available for the project."


class FixedIpNotFoundForAddress(NotFound):
    template = "Fixed IP not found for address {address}."


class NoMoreFixedIps(Conflict):
    template = "No fixed IP addresses available for network: {network_id}"


class FixedIpInUse(Invalid):
    template = "Fixed IP address {address} is already in use."


class FixedIpInvalid(Invalid):
    template = "Fixed IP address {address} is not in network {network_id}."


class FixedIpNotFoundForInstance(Invalid):
    template = "Instance {instance_uuid} does not have fixed IP address {address}."


class NetworkSetupError(NovaException):
    template = "The network could not be set up on the host: {reason}"


class VirtualInterfaceCreateFailed(NovaException):
    template = "Virtual Interface creation failed: {reason}"


class NetworkServiceUnavailable(ServiceUnavailable):
    template = "The network service could not be reached: {reason}"


class NetworkRequiresSubnet(Invalid):
    template = "Network {network_id} requires a subnet in order to boot instances on."


class ExternalNetworkAttachForbidden(Forbidden):
    template = "It is not allowed to create an interface on external network {network_id}"


class PortInUse(Conflict):
    template = "Port {port_id} is still in use."


class PortNotUsable(Invalid):
    template = "Port {port_id} not usable for instance {instance_uuid}."


class PortNotUsableDNS(PortNotUsable):
    template = ("Port {port_id} not usable for instance {instance_uuid}: its dns_name {dns_name} is not the hostname "
                "{hostname} of the instance.")


class PortFieldNotSupported(Invalid):
    """A port with a ``field`` that Nova does not support and must not ignore."""

    template = "Port {port_id} not usable: {field}={value} is not supported."


class PortRequiresFixedIp(Invalid):
    template = "Port {port_id} requires a FixedIP in order to be used."


class PortBindingFailed(NovaException):
    template = "Binding failed for port {port_id}, please check the logs of the network service for more information."


class NoUniqueMatch(Conflict):
    template = "No Unique Match Found."


class InterfaceAttachFailed(NovaException):
    template = "Failed to attach network adapter device to {instance_uuid}: {reason}"


class InterfaceAttachTimedOut(ServiceUnavailable):
    """An attach without an answer in time; the interface may still be attached."""

    template = "The network service has not created the interface in time; it may be attached later."


class PortNotFound(NotFound):
    template = "Port id {port_id} could not be found."


class PortNotSupported(Invalid):
    template = "Ports are not supported by the network driver in use."


class SecurityGroupNotFound(NotFound):
    template = "Security group {security_group_id} not found."


class SecurityGroupExists(Invalid):
    template = "Security group {name} already exists"


class SecurityGroupInUse(Invalid):
    template = "Security group {security_group_id} is in use."


class SecurityGroupRuleNotFound(NotFound):
    template = "Security group rule {rule_id} not found."


class SecurityGroupDefaultRuleNotFound(NotFound):
    template = "Security group default rule ({rule_id}) not found."


class SecurityGroupDefaultRuleExists(Conflict):
    template = "This default rule already exists."


class DnsDomainNotFound(NotFound):
    template = "DNS domain {domain} could not be found."


class DnsEntryNotFound(NotFound):
    template = "DNS entry {name} could not be found in domain {domain}."


class FloatingIpNotFoundForHost(NotFound):
    template = "Floating IP not found for host {host}."


class FloatingIpNotFound(NotFound):
    template = "Floating IP not found for ID {id}"


class FloatingIpPoolNotFound(NotFound):
    template = "Floating IP pool not found."


class NoMoreFloatingIps(NotFound):
    template = "No more floating IPs in pool {pool}."


class FloatingIpInUse(Invalid):
    template = "Floating IP {address} is in use."


class FloatingIpNotAssociated(Conflict):
    template = "Floating IP {address} is not associated with instance {instance_uuid}."


class FloatingIpExists(Conflict):
    template = "Floating IP {address} already exists."
