"""The blocking faces of the areas whose objects have no handle."""

from __future__ import annotations

from ai.backend.client.func.bounds import (
    AsyncDomain,
    AsyncGroup,
    AsyncKeypairResourcePolicy,
    AsyncResourcePreset,
    AsyncStoragePolicy,
)
from ai.backend.client.func.people import AsyncKeyPair, AsyncUser
from ai.backend.client.func.resource_groups import AsyncScalingGroup
from ai.backend.client.func.session_defaults import AsyncDotfile, AsyncSessionTemplate
from ai.backend.client.func.storage import AsyncQuotaScope, AsyncStorage
from ai.backend.client.func.system import (
    AsyncAgent,
    AsyncAgentWatcher,
    AsyncAuth,
    AsyncEtcdConfig,
    AsyncManager,
    AsyncResource,
    AsyncServerLog,
    AsyncSystem,
)
from ai.backend.client.portal import Facade, blocking


class QuotaScope(Facade[AsyncQuotaScope]):
    """``api_session.QuotaScope`` of a blocking session."""

    get = blocking(AsyncQuotaScope.get)
    set = blocking(AsyncQuotaScope.set)
    unset = blocking(AsyncQuotaScope.unset)


class Storage(Facade[AsyncStorage]):
    """``api_session.Storage`` of a blocking session."""

    paginated_list = blocking(AsyncStorage.paginated_list)
    detail = blocking(AsyncStorage.detail)
    performance_metric = blocking(AsyncStorage.performance_metric)
    list_mounts = blocking(AsyncStorage.list_mounts)


class Domain(Facade[AsyncDomain]):
    """``api_session.Domain`` of a blocking session."""

    list = blocking(AsyncDomain.list)
    detail = blocking(AsyncDomain.detail)
    create = blocking(AsyncDomain.create)
    update = blocking(AsyncDomain.update)
    delete = blocking(AsyncDomain.delete)
    purge = blocking(AsyncDomain.purge)


class Group(Facade[AsyncGroup]):
    """``api_session.Group`` of a blocking session."""

    list = blocking(AsyncGroup.list)
    detail = blocking(AsyncGroup.detail)
    from_name = blocking(AsyncGroup.from_name)
    create = blocking(AsyncGroup.create)
    update = blocking(AsyncGroup.update)
    delete = blocking(AsyncGroup.delete)
    purge = blocking(AsyncGroup.purge)
    add_users = blocking(AsyncGroup.add_users)
    remove_users = blocking(AsyncGroup.remove_users)


class KeypairResourcePolicy(Facade[AsyncKeypairResourcePolicy]):
    """``api_session.KeypairResourcePolicy`` of a blocking session."""

    list = blocking(AsyncKeypairResourcePolicy.list)
    detail = blocking(AsyncKeypairResourcePolicy.detail)
    create = blocking(AsyncKeypairResourcePolicy.create)
    update = blocking(AsyncKeypairResourcePolicy.update)
    delete = blocking(AsyncKeypairResourcePolicy.delete)


class StoragePolicy(Facade[AsyncStoragePolicy]):
    """``UserResourcePolicy`` and ``ProjectResourcePolicy`` of a blocking session."""

    list = blocking(AsyncStoragePolicy.list)
    create = blocking(AsyncStoragePolicy.create)
    update = blocking(AsyncStoragePolicy.update)
    delete = blocking(AsyncStoragePolicy.delete)


class ScalingGroup(Facade[AsyncScalingGroup]):
    """``api_session.ScalingGroup`` of a blocking session."""

    list_available = blocking(AsyncScalingGroup.list_available)
    list = blocking(AsyncScalingGroup.list)
    detail = blocking(AsyncScalingGroup.detail)
    create = blocking(AsyncScalingGroup.create)
    update = blocking(AsyncScalingGroup.update)
    delete = blocking(AsyncScalingGroup.delete)
    associate_domain = blocking(AsyncScalingGroup.associate_domain)
    dissociate_domain = blocking(AsyncScalingGroup.dissociate_domain)
    dissociate_all_domain = blocking(AsyncScalingGroup.dissociate_all_domain)
    associate_group = blocking(AsyncScalingGroup.associate_group)
    dissociate_group = blocking(AsyncScalingGroup.dissociate_group)
    dissociate_all_group = blocking(AsyncScalingGroup.dissociate_all_group)
    associate_keypair = blocking(AsyncScalingGroup.associate_keypair)
    dissociate_keypair = blocking(AsyncScalingGroup.dissociate_keypair)


class User(Facade[AsyncUser]):
    """``api_session.User`` of a blocking session."""

    paginated_list = blocking(AsyncUser.paginated_list)
    detail = blocking(AsyncUser.detail)
    detail_by_uuid = blocking(AsyncUser.detail_by_uuid)
    create = blocking(AsyncUser.create)
    update = blocking(AsyncUser.update)
    delete = blocking(AsyncUser.delete)
    purge = blocking(AsyncUser.purge)


class ResourcePreset(Facade[AsyncResourcePreset]):
    """``api_session.ResourcePreset`` of a blocking session."""

    list = blocking(AsyncResourcePreset.list)
    create = blocking(AsyncResourcePreset.create)
    update = blocking(AsyncResourcePreset.update)
    delete = blocking(AsyncResourcePreset.delete)


class SessionTemplate(Facade[AsyncSessionTemplate]):
    """``api_session.SessionTemplate`` of a blocking session."""

    create = blocking(AsyncSessionTemplate.create)
    paginated_list = blocking(AsyncSessionTemplate.paginated_list)
    get = blocking(AsyncSessionTemplate.get)
    update = blocking(AsyncSessionTemplate.update)
    delete = blocking(AsyncSessionTemplate.delete)
    start = blocking(AsyncSessionTemplate.start)


class Dotfile(Facade[AsyncDotfile]):
    """``api_session.Dotfile`` of a blocking session."""

    create = blocking(AsyncDotfile.create)
    update = blocking(AsyncDotfile.update)
    get = blocking(AsyncDotfile.get)
    paginated_list = blocking(AsyncDotfile.paginated_list)
    delete = blocking(AsyncDotfile.delete)


class System(Facade[AsyncSystem]):
    """``api_session.System`` of a blocking session."""

    get_versions = blocking(AsyncSystem.get_versions)
    get_api_version = blocking(AsyncSystem.get_api_version)
    get_manager_version = blocking(AsyncSystem.get_manager_version)


class Auth(Facade[AsyncAuth]):
    """``api_session.Auth`` of a blocking session."""

    authorize = blocking(AsyncAuth.authorize)
    check = blocking(AsyncAuth.check)
    update_password = blocking(AsyncAuth.update_password)
    update_password_no_auth = blocking(AsyncAuth.update_password_no_auth)
    ssh_public_key = blocking(AsyncAuth.ssh_public_key)
    generate_ssh_keypair = blocking(AsyncAuth.generate_ssh_keypair)
    upload_ssh_keypair = blocking(AsyncAuth.upload_ssh_keypair)


class Manager(Facade[AsyncManager]):
    """``api_session.Manager`` of a blocking session."""

    status = blocking(AsyncManager.status)
    freeze = blocking(AsyncManager.freeze)
    unfreeze = blocking(AsyncManager.unfreeze)
    get_announcement = blocking(AsyncManager.get_announcement)
    update_announcement = blocking(AsyncManager.update_announcement)
    scheduler_op = blocking(AsyncManager.scheduler_op)


class EtcdConfig(Facade[AsyncEtcdConfig]):
    """``api_session.EtcdConfig`` of a blocking session."""

    get = blocking(AsyncEtcdConfig.get)
    set = blocking(AsyncEtcdConfig.set)
    delete = blocking(AsyncEtcdConfig.delete)


class Agent(Facade[AsyncAgent]):
    """``api_session.Agent`` of a blocking session."""

    paginated_list = blocking(AsyncAgent.paginated_list)
    detail = blocking(AsyncAgent.detail)
    update = blocking(AsyncAgent.update)


class AgentWatcher(Facade[AsyncAgentWatcher]):
    """``api_session.AgentWatcher`` of a blocking session."""

    get_status = blocking(AsyncAgentWatcher.get_status)
    agent_start = blocking(AsyncAgentWatcher.agent_start)
    agent_stop = blocking(AsyncAgentWatcher.agent_stop)
    agent_restart = blocking(AsyncAgentWatcher.agent_restart)


class KeyPair(Facade[AsyncKeyPair]):
    """``api_session.KeyPair`` of a blocking session."""

    info = blocking(AsyncKeyPair.info)
    paginated_list = blocking(AsyncKeyPair.paginated_list)
    create = blocking(AsyncKeyPair.create)
    update = blocking(AsyncKeyPair.update)
    activate = blocking(AsyncKeyPair.activate)
    deactivate = blocking(AsyncKeyPair.deactivate)
    delete = blocking(AsyncKeyPair.delete)


class Resource(Facade[AsyncResource]):
    """``api_session.Resource`` of a blocking session."""

    list_slots = blocking(AsyncResource.list_slots)
    slot_details = blocking(AsyncResource.slot_details)
    variant_properties = blocking(AsyncResource.variant_properties)
    list_presets = blocking(AsyncResource.list_presets)
    check_presets = blocking(AsyncResource.check_presets)
    get_docker_registries = blocking(AsyncResource.get_docker_registries)
    get_vfolder_types = blocking(AsyncResource.get_vfolder_types)
    recalculate_usage = blocking(AsyncResource.recalculate_usage)
    usage_per_month = blocking(AsyncResource.usage_per_month)
    usage_per_period = blocking(AsyncResource.usage_per_period)
    user_monthly_stats = blocking(AsyncResource.user_monthly_stats)
    admin_monthly_stats = blocking(AsyncResource.admin_monthly_stats)


class ServerLog(Facade[AsyncServerLog]):
    """``api_session.ServerLog`` of a blocking session."""

    list = blocking(AsyncServerLog.list)
