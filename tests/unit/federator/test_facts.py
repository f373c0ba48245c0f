"""Index of the documented behaviour: rows of chapters 2 to 10 of the facts, promises of chapter 12, and their tests."""

from __future__ import annotations

import ast
import functools

import pytest

from tests.paths import ROOT

# Row -> tests as FILE::NAME, relative to a folder tests/*/federator.
ROWS = {
    "2.1 Cluster: fields, conditions, labels, columns": [
        "test_join::test_an_agent_joins_once_and_continues_after_restarts",
        "test_novactl::test_status_with_clusters_prints_the_lines_of_the_guide",
        "test_guide::test_highly_available_installation"],
    "2.1 availableResources, nodeTaints": [
        "test_agent::test_the_report_counts_free_resources_and_running_schedules"],
    "2.1 nodeGroupsConfigs, novacreated": [
        "test_standby::test_idle_clusters_are_stopped_and_a_workload_wakes_the_cluster_that_it_needs",
        "test_standby::test_a_full_cluster_that_the_policy_selects_is_copied_with_its_labels"],
    "2.2 namespaceSelector, labelSelectors": [
        "test_policy::test_all_fields_of_a_policy_are_read",
        "test_policy::test_optional_fields_have_the_documented_defaults"],
    "2.2 kinds": ["test_policy::test_kinds_restrict_a_policy"],
    "2.2 clusterSelector, orderedClusterSelector": [
        "test_decide::test_both_cluster_selectors_apply",
        "test_decide::test_fill_and_spill_uses_the_first_value_that_has_room"],
    "2.2 groupBy": ["test_placement::test_a_group_runs_in_one_cluster"],
    "2.2 spreadConstraints": ["test_placement::test_spread_divides_by_percentages_and_merges_the_status"],
    "2.2 overrides": ["test_placement::test_spread_onto_duplicates_and_overrides_change_copies",
                      "test_policy::test_overrides_change_a_copy_of_the_object_in_their_bucket"],
    "2.2 operators of selectors": ["test_api::test_selectors_match_as_kubernetes_documents",
                                   "test_policy::test_errors_of_policies_name_the_field"],
    "2.3 ScheduleGroup": ["test_placement::test_a_group_runs_in_one_cluster",
                          "test_novactl::test_get_schedulegroups_prints_a_table"],
    "2.4 ReceivedAlert, RecoveryPlan, RecoveryRun": [
        "test_recovery::test_alert_of_alertmanager_moves_a_workload_to_another_cluster",
        "test_recovery_steps::test_types_of_steps", "test_recovery::test_schema_refuses_invalid_plans"],
    "3 annotation cluster, label target-cluster": [
        "test_placement::test_annotation_places_moves_and_status_comes_back"],
    "3 annotation spread-onto": ["test_decide::test_spread_onto_divides_evenly_or_duplicates"],
    "3 labels backpropagated": ["test_backpropagation::test_replica_sets_and_pods_follow_their_originals"],
    "3 namespace per cluster": ["test_api::test_namespaces_of_clusters_are_valid_labels"],
    "3 events of the scheduler": ["test_placement::test_policy_places_and_reports_it_by_event"],
    "3 events of the hosting cluster": ["test_novactl::test_install_and_uninstall_control_plane",
                                        "test_guide::test_highly_available_installation"],
    "4 annotation": ["test_decide::test_annotation_pins_to_a_cluster_without_a_check_of_its_capacity",
                     "test_decide::test_annotation_that_names_an_unknown_cluster_leaves_the_object_unscheduled"],
    "4 policy, one cluster": ["test_decide::test_a_policy_with_one_cluster_uses_it"],
    "4 policy, several clusters": ["test_decide::test_the_cluster_with_room_for_the_whole_group_is_chosen",
                                   "test_decide::test_an_autoscaled_cluster_is_the_last_resort"],
    "4 capacity": ["test_capacity::test_taints_selectors_and_affinity",
                   "test_decide::test_capacity_is_checked_per_node"],
    "4 group": ["test_decide::test_a_group_that_grew_too_large_moves_as_a_whole"],
    "4 spread, Divide": ["test_decide::test_spread_divides_exactly",
                         "test_decide::test_spread_creates_other_kinds_whole_in_each_cluster"],
    "4 percentageSplit": ["test_split::test_examples_of_the_documentation",
                          "test_decide::test_impossible_percentages_are_warned_about"],
    "4 spread, Duplicate": ["test_decide::test_spread_duplicates_all_replicas"],
    "4 overrides": ["test_placement::test_spread_onto_duplicates_and_overrides_change_copies"],
    "4 fill-and-spill": ["test_decide::test_fill_and_spill_uses_the_first_value_that_has_room"],
    "4 cluster-scoped objects": ["test_policy::test_cluster_scoped_objects_ignore_the_namespace_selector"],
    "4 DaemonSets": ["test_capacity::test_daemon_sets_need_no_capacity"],
    "4 re-scheduling": ["test_placement::test_policy_edit_moves_and_policy_deletion_freezes",
                        "test_placement::test_unplaceable_objects_get_a_reason_per_cluster_and_are_retried"],
    "5 create, update, delete": ["test_agent::test_copies_are_applied_reported_updated_pruned_and_removed"],
    "5 custom resources": ["test_placement::test_custom_resources_are_placed_with_their_definition"],
    "5 drift": ["test_agent::test_drift_is_reverted_in_fields_that_nova_owns"],
    "5 status of one copy": ["test_merge_status::test_the_status_of_a_single_copy_is_that_of_the_object"],
    "5 status of spread copies": ["test_merge_status::test_counters_of_spread_copies_are_summed"],
    "5 Service": ["test_merge_status::test_addresses_of_load_balancers_are_listed"],
    "5 Job": ["test_placement::test_a_job_runs_once_and_its_completion_comes_back"],
    "5 Pod": ["test_observe::test_phase_of_each_kind"],
    "5 backpropagation": ["test_backpropagation::test_replica_sets_and_pods_follow_their_originals"],
    "6 arguments and Secret": ["test_manifests::test_the_agent_has_deployment_and_arguments_of_chapter_6"],
    "6 registration": ["test_join::test_an_agent_joins_once_and_continues_after_restarts"],
    "6 a name that exists": ["test_novactl::test_a_name_that_exists_in_nova_is_refused",
                             "test_agent::test_a_second_agent_is_refused_until_the_lease_expires"],
    "6 heartbeat": ["test_novactl::test_status_marks_clusters_that_are_not_ready"],
    "7 certificates": ["test_certificates::test_certificates_have_subject_usages_and_names_of_chapter_7",
                       "test_certificates::test_authorities_are_self_signed_for_ten_years"],
    "7 Secrets": ["test_certificates::test_the_secrets_have_the_files_of_chapter_7"],
    "7 rotation": ["test_novactl::test_certificates_are_renewed_with_an_overlap",
                   "test_operation::test_no_agent_loses_its_connection_while_certificates_are_renewed",
                   "test_replaced_credentials::test_replaced_authorities_certificates_and_tokens_are_used",
                   "test_join::test_replaced_bootstrap_credentials_are_used_without_a_restart"],
    "8 manifests": ["test_manifests::test_components_have_names_labels_and_selectors_of_chapter_8",
                    "test_manifests::test_the_control_plane_has_the_arguments_of_chapter_8",
                    "test_novactl::test_the_manifests_are_valid_for_a_real_api_server"],
    "8 guide": ["test_guide::test_highly_available_installation"],
    "8 namespace, NodePort, NOVA_API_PUBLIC_HOST_OVERRIDE": [
        "test_guide::test_another_namespace_a_host_name_and_a_node_port",
        "test_manifests::test_one_line_of_a_kustomization_changes_the_namespace"],
    "9 variables": ["test_standby::test_settings_have_the_variables_and_defaults_of_the_facts",
                    "test_manifests::test_all_variables_of_standby_are_in_the_manifest_with_their_defaults"],
    "9 idle, standby, wake": [
        "test_standby::test_idle_clusters_are_stopped_and_a_workload_wakes_the_cluster_that_it_needs"],
    "9 create": [
        "test_standby::test_an_object_pinned_to_an_unknown_cluster_gets_a_copy_which_is_deleted_when_it_is_idle",
        "test_standby::test_copies_are_made_in_turn_up_to_the_maximum"],
    "9 wake-up by a Job": ["test_standby::test_a_job_spread_over_all_wakes_all"],
    "10 commands": ["test_novactl::test_commands_are_those_of_chapter_10"],
    "10 --version": ["test_novactl::test_the_version_line_begins_with_the_name_of_the_program"],
    "10 install, uninstall": ["test_novactl::test_install_and_uninstall_control_plane",
                              "test_guide::test_short_installation"],
    "10 install certs": ["test_novactl::test_install_certs_prints_secrets"],
    "10 get kubeconfig": ["test_novactl::test_the_kubeconfig_has_the_form_of_the_guide"],
    "10 get schedulegroups": ["test_novactl::test_get_schedulegroups_prints_a_table"],
    "10 status": ["test_novactl::test_status_with_clusters_prints_the_lines_of_the_guide",
                  "test_novactl::test_status_without_clusters_prints_the_lines_of_the_guide",
                  "test_novactl::test_status_marks_broken_components"],
    "P1 failback": ["test_decide::test_a_group_returns_when_its_preferred_cluster_is_not_held_back",
                    "test_returns::test_groups_return_one_at_a_time",
                    "test_partition::test_groups_return_to_their_preferred_cluster_once_it_has_settled"],
    "P2 no double run": ["test_partition::test_fenced_workloads_never_run_twice",
                         "test_partition::test_pinned_workloads_never_run_twice",
                         "test_partition::test_random_partitions_never_run_a_workload_twice",
                         "test_distrust::test_a_fence_counts_once_the_agent_has_confirmed_it"],
    "P3 claims": ["test_burst::test_a_burst_fills_the_clusters_exactly", "test_capacity::test_a_claim_counts_at_once"],
    "P4 explain, plan": ["test_placement::test_explain_names_the_first_failing_check_of_each_cluster",
                         "test_placement::test_plan_prints_the_moves_of_an_edit_and_changes_nothing"],
    "P5 retry by cause": ["test_placement::test_unplaceable_objects_get_a_reason_per_cluster_and_are_retried"],
    "P6 exact split": ["test_split::test_shares_add_up_and_no_share_is_a_whole_replica_off",
                       "test_split::test_scaling_up_by_one_adds_one_replica_to_one_cluster"],
    "P7 autoscalers": ["test_agent::test_replicas_of_an_autoscaler_are_left_alone"],
    "P8 least privilege": ["test_hostile::test_agents_may_do_nothing_outside_their_namespace",
                           "test_manifests::test_the_agent_has_no_right_to_everything"],
    "P9 deletion protection": ["test_placement::test_policy_edit_moves_and_policy_deletion_freezes",
                               "test_placement::test_a_deleted_cluster_is_drained_first"],
    "P10 flat cost": ["test_api::test_an_edit_of_a_policy_costs_the_objects_that_it_selects",
                      "test_agent::test_unchanged_copies_cost_no_request"],
    "P11 the control plane may vanish": ["test_up::test_a_lost_control_plane_is_restored_from_a_backup",
                                         "test_operation::test_an_interrupted_restoration_can_be_repeated",
                                         "test_large_restoration::test_ten_thousand_objects_of_three_members_are_restored",
                                         "test_kills::test_a_scheduler_may_end_at_each_write_of_a_move"],
}


@functools.cache
def _tests() -> set[str]:
    names = set()
    for path in ROOT.glob("tests/*/federator/**/test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(f"{path.stem}::{node.name}")
    return names


@pytest.mark.parametrize("row", ROWS)
def test_each_row_has_its_tests(row: str) -> None:
    assert ROWS[row]
    assert not set(ROWS[row]) - _tests(), "renamed or removed"
