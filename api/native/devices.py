"""The devices that workers serve."""

from fastapi import APIRouter

from api.deps import AnAdmin, Here
from api.native.shapes import DeviceList, DeviceObject
from batchgen.storage import devices, fleet

router = APIRouter(prefix="/v1/devices", tags=["devices"], dependencies=[AnAdmin])


@router.get("")
def list_devices(here: Here) -> DeviceList:
    """Every device ever served, with the age of its last heartbeat by the database's clock."""
    with here.database.unit_of_work() as tx:
        found = devices.every(tx)
        ages = fleet.heartbeat_ages(tx)
    return DeviceList(data=[DeviceObject.of(d, ages[d.id]) for d in found if d.id in ages])
