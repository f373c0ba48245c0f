"""A scheduler request for filters and weighers: the spec and values derived from it."""

from nova.objects.hosts.scheduling import RequestSpec
from nova.objects.hosts.trees import Amounts
from nova.objects.requirements.properties import canonical_architecture, with_current_names
from nova.scheduler.options import SchedulerOptions

# Image property -> prefix of the trait for its value (option image_metadata_prefilter).
_IMAGE_TRAITS = {"hw_cdrom_bus": "COMPUTE_STORAGE_BUS_", "hw_disk_bus": "COMPUTE_STORAGE_BUS_",
                 "hw_video_model": "COMPUTE_GRAPHICS_MODEL_", "hw_vif_model": "COMPUTE_NET_VIF_MODEL_",
                 "hw_architecture": "HW_ARCH_", "hw_emulation_architecture": "COMPUTE_ARCH_",
                 "hw_viommu_model": "COMPUTE_VIOMMU_MODEL_"}


class Request:
    """A select or explain request. ``group_hosts`` (host -> members of the server group) grows during planning."""

    def __init__(self, spec: RequestSpec, settings: SchedulerOptions) -> None:
        self.spec, self.settings = spec, settings
        self.count = len(spec.instance_uuids)
        self.flavor = spec.flavor
        self.image = spec.image
        self.extra_specs = spec.flavor.extra_specs
        self.hints = spec.hints
        self.resources = {name: amount for name, amount in spec.resources.items() if amount > 0}
        self.dedicated_request = spec.dedicated_request
        self.properties = with_current_names(self.image.properties if self.image else {})
        for name in ("hw_architecture", "hw_emulation_architecture"):
            if name in self.properties:
                self.properties[name] = canonical_architecture(self.properties[name])
        traits = set(spec.required_traits)
        if settings.query_placement_for_image_type_support and self.image and self.image.disk_format:
            traits.add(f"COMPUTE_IMAGE_TYPE_{self.image.disk_format.upper()}")
        if settings.image_metadata_prefilter:
            traits |= {prefix + self.properties[name].upper().replace("-", "_")
                       for name, prefix in _IMAGE_TRAITS.items() if name in self.properties}
        self.required_traits, self.forbidden_traits = frozenset(traits), frozenset(spec.forbidden_traits)
        # Amounts that the provider tree must provide.
        self.amounts = Amounts(self.resources, self.required_traits, self.forbidden_traits, spec.groups,
                               isolate=spec.group_policy == "isolate")
        self.group_hosts: dict[str, int] = dict(spec.group.hosts) if spec.group else {}
        self.by_aggregates = False  # True if aggregate metadata was used: the claim then checks the metadata again

    @property
    def policy(self) -> str | None:
        """Return the policy of the server group, or None without a group."""
        return self.spec.group.policy if self.spec.group else None

    def place(self, host: str) -> None:
        """Count one server of this request on ``host``."""
        if self.spec.group is not None:
            self.group_hosts[host] = self.group_hosts.get(host, 0) + 1
