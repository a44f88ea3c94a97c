"""calicoctl against a real etcd: what an operator types, and what is stored."""

from __future__ import annotations

import json

import pytest
import yaml

from ipam.blocks import new_block
from libcalico.model import NodeBGPSpec
from libcalico.model.codec import encode
from libcalico.model.keys import BlockKey, PolicyRealizationKey, path_of
from libcalico.testing.etcd import EtcdCluster
from tests.support import calc

POOL = """\
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pool-a}
spec: {cidr: 10.10.0.0/16, natOutgoing: true}
"""
POLICY = """\
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: allow-web, namespace: prod}
spec:
  order: 100
  selector: app == 'web'
  ingress:
    - action: Allow
      protocol: TCP
      source: {selector: "role == 'fe' && zone != 'x'", namespaceSelector: all()}
      destination: {ports: [80, "8000:8080", http-alt]}
"""


def stored(etcd: EtcdCluster, plural: str, name: str) -> dict:
    key = f"/calico/resources/v3/projectcalico.org/{plural}/{name}"
    return json.loads(etcd.ctl("get", "--print-value-only", key))


def test_what_create_stores_is_the_data_models_sample_field_by_field(ctl, etcd):
    said = ctl("create", "-f", ctl.file(POOL + "---\n" + POLICY))
    assert said == "Successfully created 2 resource(s)\n"
    pool = stored(etcd, "ippools", "pool-a")
    assert set(pool.pop("metadata")) == {"name", "uid", "creationTimestamp"}
    assert pool == {
        "kind": "IPPool",
        "apiVersion": "projectcalico.org/v3",
        "spec": {
            "cidr": "10.10.0.0/16",
            "vxlanMode": "Never",
            "ipipMode": "Never",
            "natOutgoing": True,
            "blockSize": 26,
            "nodeSelector": "all()",
            "allowedUses": ["Workload", "Tunnel"],
            "assignmentMode": "Automatic",
        },
    }
    policy = stored(etcd, "networkpolicies", "prod/allow-web")
    metadata = policy["metadata"]
    assert metadata["labels"] == {"projectcalico.org/tier": "default"}
    assert metadata["annotations"] == {"projectcalico.org/metadata": '{"name":"allow-web"}'}
    assert policy["spec"] == {
        "tier": "default",
        "order": 100,
        "ingress": [
            {
                "action": "Allow",
                "protocol": "TCP",
                "source": {
                    "selector": "role == 'fe' && zone != 'x'",
                    "namespaceSelector": "all()",
                },
                "destination": {"ports": [80, "8000:8080", "http-alt"]},
            }
        ],
        "selector": "app == 'web'",
        "types": ["Ingress"],
    }


def test_the_life_of_an_object(ctl):
    file = ctl.file(POOL)
    assert ctl("apply", "-f", file) == "Successfully applied 1 'IPPool' resource(s)\n"
    ctl("create", "-f", file, code=1)
    assert ctl.err == (
        "failed to create 'IPPool' resource: "
        "[resource already exists: IPPool(pool-a) with error: <nil>]\n"
    )
    assert ctl("create", "--skip-exists", "-f", file).startswith("Successfully created 1")
    assert ctl("replace", "-f", file) == "Successfully replaced 1 'IPPool' resource(s)\n"
    patched = ctl("patch", "pool", "pool-a", "-p", '{"spec": {"disabled": true}}')
    assert patched == "Successfully patched 1 'IPPool' resource\n"
    assert ctl("label", "pool", "pool-a", "a=b") == "Successfully set label a on pool pool-a\n"
    ctl("label", "pool", "pool-a", "a=c", code=1)
    assert "please use '--overwrite'" in ctl.err
    assert "updated" in ctl("label", "pool", "pool-a", "a=c", "--overwrite")
    shown = yaml.safe_load(ctl("get", "pool", "pool-a", "-o", "yaml"))
    assert shown["metadata"]["labels"] == {"a": "c"}
    assert shown["spec"]["disabled"] is True
    assert ctl("label", "pool", "pool-a", "a", "--remove").startswith("Successfully removed")
    assert ctl("delete", "pool", "pool-a") == "Successfully deleted 1 'IPPool' resource(s)\n"
    ctl("delete", "pool", "pool-a", code=1)
    assert ctl.err.startswith("Failed to delete 'IPPool' resource: resource does not exist")
    ctl("delete", "pool", "pool-a", "--skip-not-exists")
    ctl("get", "pool", "pool-a", code=1)
    assert ctl.err == "resource does not exist: IPPool(pool-a) with error: <nil>\n"


def test_a_stale_resource_version_is_a_conflict_and_loses_nothing(ctl, etcd):
    ctl("apply", "-f", ctl.file(POOL))
    old = ctl("get", "pool", "pool-a", "-o", "yaml")
    ctl("label", "pool", "pool-a", "a=b")
    ctl("replace", "-f", ctl.file(old), code=1)
    assert "hit error: update conflict: IPPool(pool-a)" in ctl.err
    assert stored(etcd, "ippools", "pool-a")["metadata"]["labels"] == {"a": "b"}


def test_fields_of_a_newer_writer_survive_our_update(ctl, etcd):
    ctl("apply", "-f", ctl.file(POOL))
    newer = stored(etcd, "ippools", "pool-a")
    newer["spec"]["fromTheFuture"] = {"x": [1]}
    etcd.ctl("put", "/calico/resources/v3/projectcalico.org/ippools/pool-a", json.dumps(newer))
    ctl("label", "pool", "pool-a", "a=b")
    assert stored(etcd, "ippools", "pool-a")["spec"]["fromTheFuture"] == {"x": [1]}


def test_a_pool_over_blocks_of_another_size_is_refused(ctl, etcd):
    block = new_block("10.10.3.0/28", first_sequence=1)
    etcd.ctl("put", path_of(BlockKey("10.10.3.0/28")), encode(block).decode())
    ctl("create", "-f", ctl.file(POOL), code=1)
    assert "conflicts with existing allocations that use a different blockSize" in ctl.err
    same_size = POOL.replace("natOutgoing: true", "blockSize: 28")
    assert "created 1 'IPPool'" in ctl("create", "-f", ctl.file(same_size))


@pytest.mark.parametrize("verb", ["apply", "replace"])
def test_an_object_that_does_not_parse_is_repaired_by_writing_it_again(ctl, etcd, verb):
    ctl("apply", "-f", ctl.file(POOL))
    etcd.ctl("put", "/calico/resources/v3/projectcalico.org/ippools/pool-a", '{"spec": [')
    ctl(verb, "-f", ctl.file(POOL))
    assert stored(etcd, "ippools", "pool-a")["spec"]["cidr"] == "10.10.0.0/16"
    assert stored(etcd, "ippools", "pool-a")["metadata"]["uid"]


@pytest.mark.parametrize("form", ["ps", "yaml", "name"])
def test_a_value_that_does_not_parse_is_warned_of_and_the_others_are_shown(ctl, etcd, form):
    ctl("apply", "-f", ctl.file(POOL))
    broken = "/calico/resources/v3/projectcalico.org/ippools/broken"
    etcd.ctl("put", broken, '{"spec": [')
    assert "pool-a" in ctl("get", "pools", "-o", form)
    assert "broken" not in ctl.out
    (line,) = ctl.err.splitlines()
    assert line.startswith(f"warning: {broken} is skipped, it does not parse: ")
    ctl("get", "pool", "broken", code=1)
    assert f"failed to parse datastore entry key={broken}" in ctl.err
    ctl("delete", "pool", "broken")
    ctl("get", "pools")
    assert ctl.err == ""


FAULTS = {
    "an unknown kind": ("kind: Foo\napiVersion: v1\n", "unknown resource type (Foo)", ""),
    "a wrong type": ("spec: {disabled: perhaps}", "cannot unmarshal string", "spec.disabled"),
    "an unknown member": ("spec: {colour: red}", "not recognized", "spec.colour"),
    "a member in two cases": ("spec: {cidr: 10.8.0.0/16, CIDR: a}", "given twice", "spec.CIDR"),
    "a member twice": ("spec: {cidr: 10.8.0.0/16, cidr: a}", 'key "cidr" already set', ""),
    "a bad CIDR": ("spec: {cidr: 10.8.0.1/16}", "not strictly masked", "IPPool.Spec.CIDR"),
    "a bad selector": (
        "spec: {cidr: 10.8.0.0/16, nodeSelector: 'a = b'}",
        "Tag: selector",
        "NodeSelector",
    ),
}
POOL_HEAD = "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: NAME}\n"


def pool_document(name: str, text: str) -> str:
    return text if text.startswith("kind") else POOL_HEAD.replace("NAME", name) + text


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_document_is_named_with_its_field_and_is_not_applied(ctl, etcd, fault):
    text, reason, field = FAULTS[fault]
    ctl("apply", "-f", ctl.file(POOL + "---\n" + pool_document("b", text)), code=1)
    assert reason in ctl.err
    assert field in ctl.err
    assert "document 2" in ctl.err
    assert "ippools/b" not in etcd.ctl("get", "--prefix", "--keys-only", "/calico")


def test_faults_of_every_sort_are_said_together_and_nothing_is_applied(ctl, etcd):
    documents = [pool_document(f"p{i}", text) for i, (text, _, _) in enumerate(FAULTS.values())]
    ctl("apply", "-f", ctl.file("---\n".join([f"{text}\n" for text in documents] + [POOL])), code=1)
    lines = ctl.err.splitlines()
    assert len(lines) == len(FAULTS)
    for number, (line, (_, reason, field)) in enumerate(
        zip(lines, FAULTS.values(), strict=True), start=1
    ):
        assert reason in line
        assert field in line
        assert f"document {number}" in line
    assert "ippools" not in etcd.ctl("get", "--prefix", "--keys-only", "/calico")


BAD = """\
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: x}
spec: {cidr: 10.0.0.0/16, colour: red}
---
kind: Foo
apiVersion: v1
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: y}
spec: {order: first}
"""


@pytest.mark.parametrize("verb", ["create", "apply", "replace", "delete", "validate"])
def test_every_fault_of_a_file_is_named_and_nothing_is_written(ctl, etcd, verb):
    ctl(verb, "-f", ctl.file(BAD), code=1)
    lines = ctl.err.splitlines()
    assert "document 1, field spec.colour" in lines[0]
    assert "unknown resource type (Foo)" in lines[1]
    assert "document 3, field spec.order" in lines[2]
    assert "ippools" not in etcd.ctl("get", "--prefix", "--keys-only", "/calico")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("spec: {cidr: 10.10.0.1/16}", "IPPool CIDR is not strictly masked"),
        ("spec: {cidr: nonsense}", "IPPool.Spec.CIDR"),
        ("spec: {cidr: 10.10.0.0/16, blockSize: 33}", "BlockSize"),
        ("spec: {cidr: 10.10.0.0/16, nodeSelector: 'a = b'}", "tag: selector"),
        ("spec: {cidr: 10.10.0.0/16, ipipMode: Perhaps}", "supported values"),
    ],
)
def test_a_bad_value_is_refused_with_field_value_and_reason(ctl, document, message):
    head = "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: x}\n"
    ctl("create", "-f", ctl.file(head + document), code=1)
    assert message.lower() in ctl.err.lower()


def test_a_partial_success_says_how_far_it_came(ctl):
    overlapping = POOL.replace("pool-a", "pool-b")
    ctl("create", "-f", ctl.file(POOL + "---\n" + overlapping), code=1)
    expected = "Partial success: created the first 1 out of 2 'IPPool' resources:\n"
    assert ctl.out == expected
    assert "overlaps with IPPool(pool-a)" in ctl.err


def test_namespaces(ctl):
    ctl("apply", "-f", ctl.file(POLICY))
    assert "allow-web" not in ctl("get", "networkpolicies")
    assert "allow-web" in ctl("get", "networkpolicies", "-n", "prod")
    assert ctl("get", "networkpolicies", "-A").split()[:2] == ["NAMESPACE", "NAME"]
    ctl("apply", "-f", ctl.file(POLICY), "-n", "other", code=1)
    assert "prod != other" in ctl.err
    ctl("delete", "-f", ctl.file(POLICY))
    assert "allow-web" not in ctl("get", "networkpolicies", "-A")


def test_several_formats_of_the_same_object(ctl):
    ctl("apply", "-f", ctl.file(POOL))
    assert json.loads(ctl("get", "pools", "-o", "json"))["kind"] == "IPPoolList"
    assert json.loads(ctl("get", "pool", "pool-a", "-o", "json"))["spec"]["blockSize"] == 26
    template = "{{range .}}{{range .Items}}{{.Name}} {{.Spec.CIDR}}{{end}}{{end}}"
    assert ctl("get", "pools", "-o", f"go-template={template}") == "pool-a 10.10.0.0/16"
    assert ctl("get", "pools", "-o", "name") == "ippool/pool-a\n"
    assert ctl("get", "pools", "-o", "custom-columns=NAME").split() == ["NAME", "pool-a"]
    exported = yaml.safe_load(ctl("get", "pool", "pool-a", "--export", "-o", "yaml"))
    assert exported["metadata"] == {"name": "pool-a"}


def test_files_directories_and_standard_input(ctl, tmp_path):
    folder = tmp_path / "d"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.yaml").write_text(POOL)
    (folder / "sub/b.json").write_text(json.dumps(yaml.safe_load(POLICY)))
    (folder / "ignored.txt").write_text("nonsense")
    assert "applied 1 'IPPool'" in ctl("apply", "-f", str(folder))
    assert "applied 2 resource(s)" in ctl("apply", "-R", "-f", str(folder))
    empty = tmp_path / "e"
    empty.mkdir()
    ctl("apply", "-f", str(empty), code=1)
    assert f"no resources specified in directory {empty}" in ctl.err
    assert ctl("apply", "--skip-empty", "-f", str(empty)) == "No resources specified\n"


def test_what_is_read_only_cannot_be_written(ctl):
    ctl("apply", "-f", ctl.file(POOL))
    information = ctl("get", "clusterinformation", "default", "-o", "yaml")
    ctl("apply", "-f", ctl.file(information), code=1)
    assert "is not supported on ClusterInformation" in ctl.err
    ctl("delete", "tier", "default", code=1)
    assert "Cannot delete default tier" in ctl.err


def test_a_cluster_of_another_version_is_refused_unless_allowed(ctl, etcd):
    ctl("apply", "-f", ctl.file(POOL))
    information = stored(etcd, "clusterinformations", "default")
    information["spec"]["calicoVersion"] = "v9.9.9"
    key = "/calico/resources/v3/projectcalico.org/clusterinformations/default"
    etcd.ctl("put", key, json.dumps(information))
    ctl("get", "pools", code=1)
    assert "Cluster Version:  9.9.9\nUse --allow-version-mismatch to override" in ctl.err
    assert "pool-a" in ctl("--allow-version-mismatch", "get", "pools")
    assert "Cluster Version:   v9.9.9" in ctl("version")


def test_an_absent_datastore_is_one_line(ctl, monkeypatch):
    monkeypatch.setenv("ETCD_ENDPOINTS", "http://127.0.0.1:1")
    ctl("get", "pools", code=1)
    assert len(ctl.err.splitlines()) == 1
    monkeypatch.delenv("ETCD_ENDPOINTS")
    ctl("get", "pools", code=1)
    assert "no etcd endpoints specified" in ctl.err


def test_ipam_show_of_an_empty_cluster(ctl):
    ctl("apply", "-f", ctl.file(POOL))
    assert "| IP Pool  | 10.10.0.0/16 |     65536 |     0 (0%) |" in ctl("ipam", "show")
    assert ctl("ipam", "show", "--ip=10.10.0.1") == "10.10.0.1 is not assigned\n"
    ctl("ipam", "show", "--ip=here", code=1)
    assert "invalid IP address specified: here" in ctl.err
    assert "StrictAffinity to: true" in ctl("ipam", "configure", "--strictaffinity=true")
    assert "| StrictAffinity               | true " in ctl("ipam", "show", "--show-configuration")


def test_get_wide_says_on_how_many_nodes_a_policy_is_realized(ctl, etcd):
    ctl("apply", "-f", ctl.file(CLUSTER))
    assert ctl("get", "np", "-n", "prod", "-o", "wide").splitlines()[1].split()[-1] == "0/0"
    revision = int(
        ctl("get", "np", "only-80", "-n", "prod", "-o", "json")
        and json.loads(ctl.out)["metadata"]["resourceVersion"]
    )
    refused = {"kind": "NetworkPolicy", "namespace": "prod", "name": "only-80", "reason": "no room"}
    for node, kinds, exceptions in (
        ("n1", {"NetworkPolicy": revision, "StagedNetworkPolicy": revision + 9}, []),
        ("n2", {"NetworkPolicy": revision - 1}, []),
        ("n3", {"NetworkPolicy": revision}, [refused]),
    ):
        said = {"revisions": kinds, "exceptions": exceptions}
        etcd.ctl("put", path_of(PolicyRealizationKey(node)), json.dumps(said))
    etcd.ctl("put", path_of(PolicyRealizationKey("n4")), "[]")
    row = ctl("get", "np", "-n", "prod", "-o", "wide").splitlines()[1].rstrip()
    assert row.endswith(
        f"  1/4 (n2: behind, at revision {revision - 1}; n3: no room; n4: behind, at revision 0)"
    )
    assert "warning: what node n4 says does not parse" in ctl.err
    assert (
        ctl("get", "np", "-n", "prod", "-o", "custom-columns=name,realized")
        .splitlines()[1]
        .startswith("only-80   1/4 (")
    )
    assert "1/4 (" in ctl("get", "snp", "-n", "prod", "-o", "wide").splitlines()[1]
    assert "REALIZED" not in ctl("get", "np", "-n", "prod")


# -- policy explain ----------------------------------------------------------------------------

CLUSTER = """\
{apiVersion: projectcalico.org/v3, kind: Profile, metadata: {name: kns.prod},
 spec: {ingress: [{action: Allow}], egress: [{action: Allow}]}}
---
{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: only-80, namespace: prod},
 spec: {selector: app == 'db',
        ingress: [{action: Allow, protocol: TCP, destination: {ports: [80]}}]}}
---
{apiVersion: projectcalico.org/v3, kind: StagedNetworkPolicy,
 metadata: {name: only-80, namespace: prod}, spec: {selector: app == 'db', types: [Ingress]}}
"""


def store_pods(etcd: EtcdCluster) -> None:
    for pod, address, labels in (("web", "10.0.0.1", {}), ("db", "10.0.0.2", {"app": "db"})):
        key, value = calc.wep(
            f"n1-k8s-{pod}-eth0",
            address,
            pod=pod,
            endpoint="eth0",
            interface_name=f"cali{pod}",
            labels=labels,
            profiles=("kns.prod",),
        )
        etcd.ctl("put", path_of(key), encode(value).decode())


def test_policy_explain_names_what_decides_now_and_if_it_were_staged(ctl, etcd):
    ctl("apply", "-f", ctl.file(CLUSTER))
    store_pods(etcd)
    said = ctl("policy", "explain", "prod/web", "prod/db", "tcp/80").splitlines()
    assert said[0] == "allowed: tcp 10.0.0.1 -> 10.0.0.2 port 80"
    assert "  decided by tier default, NetworkPolicy prod/only-80, rule 0" in said
    said = ctl("policy", "explain", "10.0.0.1", "prod/db", "udp/80").splitlines()
    assert said[0] == "denied: udp 10.0.0.1 -> 10.0.0.2 port 80"
    assert said[-1] == "  decided by the end of tier default: no rule of its policies matched"
    ctl("policy", "explain", "prod/web", "prod/db", "tcp/80", "--staged", "-o", "json")
    assert json.loads(ctl.out)["allowed"] is False
    ctl("policy", "explain", "prod/nobody", "prod/db", "tcp/80", code=1)
    assert ctl.err == 'prod/nobody: there is no workload "nobody" in namespace "prod"\n'


def test_policy_explain_reads_what_felix_would_believe(ctl, etcd):
    ctl("apply", "-f", ctl.file(CLUSTER))
    store_pods(etcd)
    prefix = "/calico/resources/v3/projectcalico.org/"
    broken = calc.np("broken", selector="app ==", types=("Ingress",))[1]
    etcd.ctl("put", prefix + "networkpolicies/prod/broken", encode(broken).decode())
    etcd.ctl("put", prefix + "networkpolicies/prod/torn", "{not json")
    etcd.ctl("put", prefix + "felixconfigurations/default", json.dumps(
        {"kind": "FelixConfiguration", "apiVersion": "projectcalico.org/v3",
         "metadata": {"name": "default"}, "spec": {"vxlanPort": 80}}))  # fmt: skip
    assert ctl("policy", "explain", "prod/web", "prod/db", "tcp/80").startswith("allowed")
    assert ctl.err.count("ignored, as felix does: ") == 2
    assert "prod/broken" in ctl.err
    said = ctl("policy", "explain", "prod/web", "prod/db", "udp/80").splitlines()
    assert said[-1] == "  decided by encapsulated packet from a workload"


def test_typha_query_names_the_policies_of_an_endpoint_and_their_spans(ctl, etcd):
    from_web = CLUSTER.replace("protocol: TCP,", "protocol: TCP, source: {selector: all()},")
    ctl("apply", "-f", ctl.file(from_web))
    store_pods(etcd)
    assert [line.split() for line in ctl("typha", "query", "endpoint", "prod/db").splitlines()] == [
        ["prod/n1-k8s-db-eth0", "on", "node", "here:"],
        ["POLICY", "NODES", "GROUPS", "MEMBERS"],
        ["NetworkPolicy", "prod/only-80", "1", "1", "2"],
        ["StagedNetworkPolicy", "prod/only-80", "1", "0", "0"],
    ]
    assert ctl("typha", "query", "endpoint", "10.0.0.1") == (
        "prod/n1-k8s-web-eth0 on node here: no policy selects it\n"
    )
    ctl("typha", "query", "endpoint", "prod/db", "-o", "json")
    assert [row["members"] for row in json.loads(ctl.out)["policies"]] == [2, 0]
    ctl("typha", "query", "endpoint", "10.9.9.9", code=1)
    assert ctl.err == "10.9.9.9: no endpoint has this address\n"


KNP = """\
{apiVersion: projectcalico.org/v3, kind: NetworkPolicy,
 metadata: {name: knp.default.web, namespace: prod}, spec: {selector: all()}}
"""


@pytest.mark.parametrize("verb", ["create", "apply", "replace", "delete"])
def test_kubernetes_policies_are_not_ours_to_write(ctl, etcd, verb):
    """5.5: kube-controllers would write them again."""
    stored_by_controller = calc.np("knp.default.web", selector="has(a)")
    key, value = stored_by_controller
    etcd.ctl("put", path_of(key), encode(value).decode())
    ctl(verb, "-f", ctl.file(KNP), code=1)
    assert "kubernetes network policies must be managed through the kubernetes API" in ctl.err
    assert stored(etcd, "networkpolicies", "prod/knp.default.web")["spec"] == {"selector": "has(a)"}


def test_policy_dry_run_names_the_pairs_that_change_and_writes_nothing(ctl, etcd):
    ctl("apply", "-f", ctl.file(CLUSTER))
    store_pods(etcd)
    before = etcd.ctl("get", "--prefix", "/calico", "--print-value-only")
    edited = CLUSTER.split("---")[1].replace("[80]", "[81]")
    assert ctl("policy", "dry-run", "-f", ctl.file(edited)).splitlines() == [
        "allowed -> denied: prod/n1-k8s-web-eth0 -> prod/n1-k8s-db-eth0:"
        " tcp 10.0.0.1 -> 10.0.0.2 port 80",
        "denied -> allowed: prod/n1-k8s-web-eth0 -> prod/n1-k8s-db-eth0:"
        " tcp 10.0.0.1 -> 10.0.0.2 port 81",
        "2 of 8 verdicts would change",
    ]
    ctl("policy", "dry-run", "-f", ctl.file(edited), "--delete", "--traffic", "udp/9", "-o", "json")
    (change,) = json.loads(ctl.out)["changes"]
    assert (change["packet"]["destinationPort"], change["allowed"]) == (9, True)
    assert ctl("policy", "dry-run", "--staged", "--traffic", "tcp/80").startswith("allowed ->")
    assert etcd.ctl("get", "--prefix", "/calico", "--print-value-only") == before


def test_policy_dry_run_refuses_what_could_not_be_applied(ctl):
    ctl("apply", "-f", ctl.file(CLUSTER))
    ctl("policy", "dry-run", code=1)
    assert ctl.err == "nothing to try: give --filename, --staged or both\n"
    bad = CLUSTER.split("---")[1].replace("app == 'db'", "app ==")
    ctl("policy", "dry-run", "-f", ctl.file(bad), code=1)
    assert "Selector" in ctl.err
    ctl("policy", "dry-run", "-f", ctl.file(CLUSTER), "--traffic", "smoke", code=1)
    assert ctl.err.startswith("smoke: no protocol; ")
    gone = CLUSTER.split("---")[1].replace("only-80", "nobody")
    ctl("policy", "dry-run", "-f", ctl.file(gone), "--delete", code=1)
    assert ctl.err.startswith("resource does not exist: NetworkPolicy(prod/nobody)")


def test_policy_dry_run_says_when_it_asks_nothing_and_why(ctl, etcd):
    store_pods(etcd)
    said = ctl("policy", "dry-run", "-f", ctl.file(CLUSTER.split("---")[2])).splitlines()
    assert said == [
        "nothing was asked: no workload would be governed by anything else",
        "0 of 0 verdicts would change",
    ]
    assert ctl.err == (
        "StagedNetworkPolicy(prod/only-80): is staged and changes nothing;"
        " --staged asks what it would do\n"
    )


def test_policy_explain_knows_the_addresses_of_a_node_with_a_host_endpoint_for_all(ctl, etcd):
    key, node = calc.node("n1", bgp=NodeBGPSpec(ipv4_address="192.0.2.1/24"))
    etcd.ctl("put", path_of(key), encode(node).decode())
    key, host = calc.hep("n1-all", interface_name="*", node="n1")
    etcd.ctl("put", path_of(key), encode(host).decode())
    said = ctl("policy", "explain", "198.51.100.1", "192.0.2.1", "tcp/80").splitlines()
    assert said[:2] == [
        "denied: tcp 198.51.100.1 -> 192.0.2.1 port 80",
        "ingress of HostEndpoint n1-all: deny",
    ]
    assert ctl("policy", "explain", "198.51.100.1", "n1-all", "tcp/22").startswith("allowed")
